"""Users' hooks around a module's forward pass, its gradients and its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gt.autograd.function import Function
from gt.client.autograd import Tensor
from gt.client.functions.hooks import Hook


class ModuleHook(NamedTuple):
    """`when` is before, after, gradient_before, gradient_after, state_before, state_after, load_before or load_after."""

    when: str
    call: Callable
    with_kwargs: bool = False
    always: bool = False


class Hooked:
    """The part of modules that calls hooks. Without hooks a call costs one dictionary lookup."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def _hook(self, hook: ModuleHook, prepend: bool = False) -> Hook:
        hooks = self.__dict__.setdefault("_hooks", [])
        hooks.insert(0 if prepend else len(hooks), hook)
        return Hook(hooks, hook)

    def _hooks_of(self, when: str) -> list[ModuleHook]:
        return [h for h in self.__dict__.get("_hooks", ()) if h.when == when]

    def register_forward_pre_hook(self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False) -> Hook:
        """Call `hook(module, args)` before each forward; a returned value replaces the arguments. With `with_kwargs` it is
        `hook(module, args, kwargs)`, and returns both."""
        return self._hook(ModuleHook("before", hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Hook:
        """Call `hook(module, args, result)` after each forward; a returned value replaces the result. With `with_kwargs` it is
        `hook(module, args, kwargs, result)`; `always_call` calls it after an error too."""
        return self._hook(ModuleHook("after", hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> Hook:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the module's inputs are computed; a returned
        value replaces `grad_input`."""
        return self._hook(ModuleHook("gradient_after", hook), prepend)

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> Hook:
        """Call `hook(module, grad_output)` before the module's gradients are computed; a returned value replaces
        `grad_output`."""
        return self._hook(ModuleHook("gradient_before", hook), prepend)

    def register_backward_hook(self, hook: Callable) -> Hook:
        raise NotImplementedError("PyTorch's register_backward_hook sees the last op only, and is given up there: "
                                  "use register_full_backward_hook")  # fmt: skip

    def register_state_dict_pre_hook(self, hook: Callable) -> Hook:
        """Call `hook(module, prefix, keep_vars)` before `state_dict()` reads this module."""
        return self._hook(ModuleHook("state_before", hook))

    def register_state_dict_post_hook(self, hook: Callable) -> Hook:
        """Call `hook(module, state_dict, prefix, local_metadata)` after `state_dict()` read this module."""
        return self._hook(ModuleHook("state_after", hook))

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable) -> Hook:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)` before
        this module loads its part of a state, which the hook may change."""
        return self._hook(ModuleHook("load_before", hook))

    def _register_load_state_dict_pre_hook(self, hook: Callable, with_module: bool = False) -> Hook:
        return self.register_load_state_dict_pre_hook(hook if with_module else lambda module, *args: hook(*args))

    def register_load_state_dict_post_hook(self, hook: Callable) -> Hook:
        """Call `hook(module, incompatible_keys)` after a state was loaded; the hook may change the lists of keys."""
        return self._hook(ModuleHook("load_after", hook))

    def _call_with_hooks(self, args: tuple, kwargs: dict) -> Any:
        for hook in self._hooks_of("before"):
            if hook.with_kwargs:
                both = hook.call(self, args, kwargs)
                args, kwargs = (args, kwargs) if both is None else both
            elif (changed := hook.call(self, args)) is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        seen = _Gradients(self) if self._hooks_of("gradient_after") or self._hooks_of("gradient_before") else None
        if seen is not None:
            args = seen.inputs(args)
        try:
            result = self.forward(*args, **kwargs)
        except Exception:  # a user's forward may raise anything; it is raised again
            for hook in self._hooks_of("after"):
                if hook.always:
                    self._after(hook, args, kwargs, None)
            raise
        for hook in self._hooks_of("after"):
            changed = self._after(hook, args, kwargs, result)
            result = result if changed is None else changed
        return result if seen is None else seen.outputs(result)

    def _after(self, hook: ModuleHook, args: tuple, kwargs: dict, result: Any) -> Any:
        return hook.call(self, args, kwargs, result) if hook.with_kwargs else hook.call(self, args, result)


class _Gradients:
    """One call of a module with gradient hooks: the nodes of its inputs and its results on the tape."""

    def __init__(self, module: Hooked) -> None:
        self.module = module
        self.given: tuple = ()
        self.grad_output: tuple = ()
        self.hooked = False  # whether an input requires gradients

    def inputs(self, args: tuple) -> tuple:
        self.given = args
        if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            return args
        self.hooked = True
        return tuple(_placed(args, _Inputs, self))

    def outputs(self, result: Any) -> Any:
        if isinstance(result, Tensor):
            return _placed((result,), _Outputs, self)[0]
        if isinstance(result, dict):
            return dict(zip(result, _placed(tuple(result.values()), _Outputs, self)))
        if isinstance(result, (list, tuple)):
            parts = _placed(tuple(result), _Outputs, self)
            return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
        return result

    def leaving(self, gradients: tuple) -> tuple:
        """The gradients of the inputs after the hooks."""
        for hook in self.module._hooks_of("gradient_after"):
            changed = hook.call(self.module, gradients, self.grad_output)
            if changed is not None:
                gradients = changed if isinstance(changed, tuple) else (changed,)
        return gradients

    def arriving(self, gradients: tuple) -> tuple:
        """The gradients of the results after the hooks."""
        for hook in self.module._hooks_of("gradient_before"):
            changed = hook.call(self.module, gradients)
            if changed is not None:
                gradients = changed if isinstance(changed, tuple) else (changed,)
        self.grad_output = gradients
        if not self.hooked:
            self.leaving((None,) * len(self.given))
        return gradients


def _placed(values: tuple, function: type[Function], seen: _Gradients) -> list:
    """The values, with the tensors among them as results of one node of the tape."""
    at = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    made = list(values)
    if not any(values[i].requires_grad for i in at):
        return made
    found = function.apply(seen, tuple(at), len(values), function is _Inputs, *(values[i] for i in at))
    for i, t in zip(at, found if isinstance(found, tuple) else (found,)):
        made[i] = t if values[i].requires_grad or function is _Outputs else values[i]
    return made


class _Place(Function):
    """An identity whose gradient calls the hooks. As in PyTorch a missing gradient is 0 for an input (`given`) and None for a
    result."""

    @staticmethod
    def forward(ctx: Any, seen: _Gradients, at: tuple[int, ...], count: int, given: bool, *tensors: Tensor) -> Any:
        ctx.seen, ctx.at, ctx.count = seen, at, count
        ctx.set_materialize_grads(given)
        ctx.mark_non_differentiable(*(t for t in tensors if not t.requires_grad))
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def spread(ctx: Any, gradients: tuple, ask: Callable[[tuple], tuple]) -> tuple:
        full: list = [None] * ctx.count
        for i, g in zip(ctx.at, gradients):
            full[i] = g
        asked = ask(tuple(full))
        return (None, None, None, None, *(asked[i] for i in ctx.at))


class _Inputs(_Place):
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Place.spread(ctx, gradients, ctx.seen.leaving)


class _Outputs(_Place):
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Place.spread(ctx, gradients, ctx.seen.arriving)
