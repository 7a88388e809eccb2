from __future__ import annotations

import subprocess
import sys

from fastllm_shared.command import declared_settings


def fastllm(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from fastllm_shared.command import main; sys.argv[0] = 'fastllm'; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_each_plane_gets_its_own_subcommands() -> None:
    assert "fastllm proxy" in fastllm("proxy", "--help").stdout.splitlines()[0]
    assert "fastllm control" in fastllm("control", "--help").stdout.splitlines()[0]
    assert fastllm("version").stdout.startswith("fastllm ")


def test_a_wrong_command_is_an_error() -> None:
    done = fastllm("serve")
    assert done.returncode == 2
    assert "serve" in done.stderr


def test_a_proxy_does_not_pay_for_the_control_plane() -> None:
    code = (
        "import sys; sys.argv = ['fastllm', 'proxy', '--help']\n"
        "from fastllm_shared.command import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('fastllm_control', 'sqlalchemy', 'starlette')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_settings_of_either_plane() -> None:
    control = {setting.flag for setting in declared_settings("control")}
    proxy = {setting.flag for setting in declared_settings("proxy")}
    assert {"--provider-sweep-interval", "--config-poll"} <= control
    assert {"--health-interval", "--config-poll"} <= proxy
    assert "--health-interval" not in control
