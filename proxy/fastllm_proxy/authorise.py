"""Which frontend models a caller may name."""

from __future__ import annotations

from fastllm_proxy.errors import Refused
from fastllm_proxy.view import Caller, FrontendModel, View


def authorise(view: View, caller: Caller, model: str) -> FrontendModel:
    """The frontend model of that name. Raises `Refused` 404 when there is none (a provider model's name is
    none) and 403 without a grant."""
    frontend = view.models.get(model)
    if frontend is None:
        raise model_not_found()
    if not caller.may_name(model):
        raise Refused(
            403,
            "model_access_denied",
            f"this API key may not use the model `{model}`",
            param="model",
        )
    return frontend


def model_not_found() -> Refused:
    """Echoes no name: one that is not configured is the client's text."""
    return Refused(404, "model_not_found", "the requested model does not exist", param="model")


def nameable(view: View, caller: Caller) -> list[FrontendModel]:
    """All frontend models that the caller can name, by name."""
    return [view.models[name] for name in sorted(view.models) if caller.may_name(name)]
