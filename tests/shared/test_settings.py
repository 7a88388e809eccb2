"""Settings from flags, environment and secret files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from fastllm_shared.settings import MASKED, SECRET, Settings, SettingsError, effective, load, settings_of

CANARY = "canary-4711"


class Some(Settings, frozen=True, kw_only=True):
    """Some settings: 100 % of them.

    More that no help shows.
    """

    token: Annotated[str, Meta(description="a secret", extra={SECRET: True}, min_length=8)]
    port: Annotated[int, Meta(description="port", ge=0, le=65_535)]
    pool: Annotated[str, Meta(description="required too")]
    pool_size: Annotated[int, Meta(description="50 % of it", ge=1)] = 10
    fast: Annotated[bool, Meta(description="a switch")] = False
    cert: Annotated[str | None, Meta(description="a file")] = None
    delay: Annotated[float, Meta(gt=0)] = 1.5

    def __post_init__(self) -> None:
        if self.cert and not self.fast:
            raise ValueError("--cert: only with --fast")


FLAGS = ("--port", "1", "--pool", "p")
SECRETS = {"FASTLLM_TOKEN": CANARY}


def loaded(*arguments: str, **environ: str) -> Some:
    return load(Some, "some", [*FLAGS, *arguments], {**SECRETS, **environ})


def problems(arguments: list[str], environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as refused:
        load(Some, "some", arguments, environ)
    assert CANARY not in str(refused.value)
    return refused.value.problems


def test_every_setting_has_a_variable_and_a_flag_but_secrets_have_none() -> None:
    found = {setting.field: setting for setting in settings_of(Some)}
    assert list(found) == list(Some.__struct_fields__)
    assert [name for name, setting in found.items() if setting.secret] == ["token"]
    assert (found["pool_size"].flag, found["pool_size"].variable) == ("--pool-size", "FASTLLM_POOL_SIZE")
    assert [name for name, setting in found.items() if setting.is_switch] == ["fast"]
    assert found["delay"].description == ""


def test_flags_win_over_the_environment_and_both_over_defaults() -> None:
    assert loaded().pool_size == 10
    assert loaded(FASTLLM_POOL_SIZE="2").pool_size == 2
    assert loaded("--pool-size", "3", FASTLLM_POOL_SIZE="2").pool_size == 3
    assert loaded("--pool-size=3", FASTLLM_POOL_SIZE="nonsense").pool_size == 3


def test_an_empty_variable_is_not_set() -> None:
    assert loaded(FASTLLM_POOL_SIZE="", FASTLLM_CERT="").cert is None


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["--fast"], {}, True),
        (["--fast", "true"], {}, True),
        (["--fast=0"], {"FASTLLM_FAST": "1"}, False),
        ([], {"FASTLLM_FAST": "1"}, True),
        ([], {"FASTLLM_FAST": "false"}, False),
    ],
)
def test_switches(arguments: list[str], environ: dict[str, str], expected: bool) -> None:
    assert loaded(*arguments, **environ).fast is expected


@pytest.mark.parametrize("given", ["--token", "--tok", "--pool-si", "--nothing"])
def test_secrets_and_abbreviations_are_no_flags(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        load(Some, "some", [*FLAGS, given, "5"], SECRETS)
    assert left.value.code == 2
    assert given in capsys.readouterr().err


def test_help_shows_flags_variables_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        load(Some, "some", ["--help"], {"FASTLLM_TOKEN": CANARY, "FASTLLM_POOL_SIZE": "77"})
    assert left.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "50 % of it (default: 10) [FASTLLM_POOL_SIZE]" in shown
    assert "Some settings: 100 % of them." in shown
    for absent in (CANARY, "77", "token", "More that"):
        assert absent not in shown


def test_everything_wrong_is_reported_together() -> None:
    found = problems(["--port", "70000", "--pool-size", "many"], {"FASTLLM_DELAY": "0"})
    assert [line.partition(":")[0] for line in found] == [
        "FASTLLM_TOKEN",
        "--port",
        "--pool",
        "--pool-size",
        "FASTLLM_DELAY",
    ]
    assert "'many'" in found[3]


@pytest.mark.parametrize("reversed_fields", [False, True])
def test_one_problem_never_hides_another_whose_name_it_holds(reversed_fields: bool) -> None:
    """The required `--pool` was taken for reported once a line spoke of `--pool-size`."""

    def field(name: str) -> tuple[str, Any]:
        return name, Annotated[int, Meta(ge=1)]

    names = ["pool", "pool_size"][:: -1 if reversed_fields else 1]
    fields = [field(name) for name in names]
    namespace = {"__doc__": "Two."}
    kind = msgspec.defstruct("Two", fields, bases=(Settings,), namespace=namespace, frozen=True, kw_only=True)
    with pytest.raises(SettingsError) as refused:
        load(kind, "two", ["--pool-size", "0"], {})
    assert sorted(line.partition(":")[0] for line in refused.value.problems) == ["--pool", "--pool-size"]


def test_values_that_contradict_each_other() -> None:
    with pytest.raises(SettingsError) as refused:
        loaded("--cert", "c.pem")
    assert refused.value.problems == ("--cert: only with --fast",)
    assert loaded("--cert", "c.pem", "--fast").cert == "c.pem"


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{CANARY}\n", encoding="utf-8")
    assert load(Some, "some", FLAGS, {"FASTLLM_TOKEN_FILE": str(path)}).token == CANARY


def test_a_secret_from_both_places_is_refused_without_showing_either(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(CANARY, encoding="utf-8")
    (found,) = problems([*FLAGS], {"FASTLLM_TOKEN_FILE": str(path), **SECRETS})
    assert found == "FASTLLM_TOKEN_FILE: set together with FASTLLM_TOKEN; set one of them"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"", b"short\n"])
def test_a_secret_file_that_cannot_be_used_is_one_problem(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    (found,) = problems([*FLAGS], {"FASTLLM_TOKEN_FILE": str(path)})
    assert found.startswith("FASTLLM_TOKEN_FILE: ")
    assert "short" not in found


def test_a_bad_secret_is_named_and_not_shown() -> None:
    (found,) = problems([*FLAGS], {"FASTLLM_TOKEN": CANARY[:5]})
    assert found.startswith("FASTLLM_TOKEN: ")
    assert CANARY[:5] not in found


def test_only_secrets_are_read_from_files(tmp_path: Path) -> None:
    assert loaded(FASTLLM_CERT_FILE=str(tmp_path / "absent")).cert is None


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = loaded(*FLAGS, **SECRETS)
    assert settings.token == CANARY
    assert CANARY not in repr(settings)
    assert CANARY not in str(settings)
    assert effective(settings)["token"] == MASKED
    assert effective(settings)["port"] == 1


def test_a_secret_given_as_a_flag_is_told_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    class Guarded(Settings, frozen=True, kw_only=True):
        """Guarded."""

        data_token: Annotated[str, msgspec.Meta(description="a secret", extra={SECRET: True})]
        data_folder: Annotated[str, msgspec.Meta(description="a folder")] = "."

    with pytest.raises(SystemExit):
        load(Guarded, "prog", ["--data-token", "sk-canary"], {})
    said = capsys.readouterr().err
    assert "set FASTLLM_DATA_TOKEN" in said
    assert "canary" not in said
