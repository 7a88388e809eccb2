"""What stands there is of one Struct, and is taken before what the glossary says of the name."""

from __future__ import annotations

from fastllm_control.glossary import GLOSSARY
from fastllm_control.glossary_of_structs import OF_STRUCTS


def test_each_names_a_struct_and_a_field() -> None:
    assert OF_STRUCTS
    for name, text in OF_STRUCTS.items():
        struct, field = name.split(".")
        assert struct[0].isupper()
        assert field.islower()
        assert GLOSSARY[name] == text
