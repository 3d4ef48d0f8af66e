"""`state_dict()` and `load_state_dict()` of modules: tensors by PyTorch's names and in its order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from gt.client.autograd import Tensor
from gt.client.functions.create import tensor
from gt.client.writes import overwrite
from gt.errors import ArgumentError

EXTRA = "_extra_state"  # the key of `get_extra_state()`


class IncompatibleKeys(NamedTuple):
    """The keys that `load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def _own(module: Any) -> Iterator[tuple[str, Tensor]]:
    yield from module._own_parameters()
    yield from ((name, value) for name, value, lasting in module._own_buffers() if lasting)


def no_state(method: Any) -> Any:
    """Mark the default method of Module, which counts as not overridden."""
    method.no_state = True
    return method


def _has_extra(module: Any, side: str) -> bool:
    return not hasattr(getattr(type(module), side), "no_state")


def collect(module: Any, state: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    for where, inner in module.named_modules(None, prefix.rstrip("."), remove_duplicate=False):
        before = f"{where}." if where else ""
        for hook in inner._hooks_of("state_before"):
            hook.call(inner, before, keep_vars)
        state.update({before + name: t if keep_vars else t.detach() for name, t in _own(inner)})
        if _has_extra(inner, "get_extra_state"):
            state[before + EXTRA] = inner.get_extra_state()
        for hook in inner._hooks_of("state_after"):
            hook.call(inner, state, before, {})
    return state


def load(module: Any, state: Any, strict: bool, assign: bool) -> IncompatibleKeys:
    """Load values by name. One error lists everything that does not fit."""
    state = dict(state)
    keys, wrong = IncompatibleKeys([], []), list[str]()
    expected: set[str] = set()
    for where, inner in module.named_modules(remove_duplicate=False):
        before = f"{where}." if where else ""
        for hook in inner._hooks_of("load_before"):
            hook.call(inner, state, before, {}, strict, keys.missing_keys, keys.unexpected_keys, wrong)
        for name, variable in list(_own(inner)):
            expected.add(before + name)
            if before + name in state:
                _take(inner, name, variable, state[before + name], assign, wrong, before + name)
            else:
                keys.missing_keys.append(before + name)
        if _has_extra(inner, "set_extra_state"):
            expected.add(before + EXTRA)
            if before + EXTRA in state:
                inner.set_extra_state(state[before + EXTRA])
            else:
                keys.missing_keys.append(before + EXTRA)
    keys.unexpected_keys.extend(name for name in state if name not in expected)
    for inner in module.modules():
        for hook in inner._hooks_of("load_after"):
            hook.call(inner, keys)
    if strict and (keys.missing_keys or keys.unexpected_keys):
        wrong.insert(0, f"missing {keys.missing_keys}, unexpected {keys.unexpected_keys}")
    if wrong:
        raise ArgumentError(f"this state does not fit {type(module).__name__}: " + "; ".join(wrong))
    return keys


def _take(owner: Any, name: str, variable: Tensor, given: Any, assign: bool, wrong: list[str], path: str) -> None:
    value = given if isinstance(given, Tensor) else tensor(given)
    if value.handle.spec.shape != variable.handle.spec.shape:
        wrong.append(f"{path} has shape {variable.handle.spec.shape}, the state has {value.handle.spec.shape}")
        return
    copied = value if assign else value.detach().to(variable.handle.spec.dtype).clone()
    overwrite(variable, copied.handle)
