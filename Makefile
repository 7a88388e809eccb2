.PHONY: run test check bench soak lock docs clean

run: ## Everything installed, everything started on the embedded database, a first request shown
	@./run

test: ## Everything installed, the checks and the whole suite
	@./test

check: ## The checks alone: style, types, imports
	@requirements/setup.sh test
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

bench: ## Speed beside nginx (needs nginx and wrk on the PATH)
	@requirements/setup.sh test
	@.venv/bin/python -m tests.benchmarks.speed

soak: ## What memory does in 20 minutes of mixed load with aborts (needs nginx on the PATH)
	@requirements/setup.sh test
	@.venv/bin/python -m tests.benchmarks.memory --soak 20

COMPILE = .venv/bin/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

lock: ## Pins every dependency again, by hash
	@requirements/setup.sh run
	@$(COMPILE) pyproject.toml --output-file requirements/runtime.txt
	@$(COMPILE) pyproject.toml --group dev --constraint requirements/runtime.txt --output-file requirements/dev.txt
	@$(COMPILE) --no-deps --group demo --output-file requirements/demo.txt
	@$(COMPILE) --group tools --output-file requirements/tools.txt

docs: ## Writes docs/reference again, from the code
	@requirements/setup.sh test
	@.venv/bin/python -m tests.contract.reference

clean: ## Removes what the other targets made, but no data
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
