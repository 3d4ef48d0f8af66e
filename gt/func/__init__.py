"""Functions made of functions: their gradients, as functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from gt import missing_names
from gt.autograd.functional import fresh
from gt.autograd.functional import jvp as along
from gt.autograd.walk import grad as walk
from gt.autograd.walk import seeds
from gt.client.autograd import Tensor
from gt.client.backward import nodes_of
from gt.client.functions.join import stack
from gt.client.functions.split import select
from gt.client.grad_mode import enable_grad

__all__ = ["functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
           "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap"]  # fmt: skip


def _mapped(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """Tensors in tuples, lists and dicts, each changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(t, change) for t in tree)
    return {k: _mapped(v, change) for k, v in tree.items()} if isinstance(tree, dict) else tree


def _flat(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(tree, found.append)
    return found


def _others(roots: list[Tensor], own: list[Tensor]) -> bool:
    """Whether the tape behind the roots leads to a leaf that is not one's own: then a gradient may be wanted beyond."""
    mine = {id(t) for t in own}
    return any(isinstance(e, Tensor) and id(e) not in mine for node in nodes_of(roots) for e in node.edges)


def _with_leaves(args: tuple, numbers: tuple[int, ...]) -> tuple[list, list[Tensor]]:
    """The arguments, with new leaves in place of the tensors of the numbered ones, and those leaves in order."""
    full = list(args)
    for i in numbers:
        full[i] = _mapped(args[i], lambda t: fresh(t, True))
    return full, _flat([full[i] for i in numbers])


def grad_and_value(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """A function that gives the gradient of `func` by its arguments `argnums`, and its value."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(func)
    def slopes(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            full, own = _with_leaves(args, numbers)
            out = func(*full, **kwargs)
            y, aux = out if has_aux else (out, None)
            if not isinstance(y, Tensor) or y.handle.spec.numel != 1 or y.handle.spec.shape:
                raise RuntimeError(f"gt.func.grad needs a function that returns a 0-d tensor, not {y!r:.80}")
            graph = _others([y], own)
            found = iter(walk(y, own, create_graph=graph, materialize_grads=True) if y.requires_grad else [t * 0 for t in own])
            given = [_mapped(full[i], lambda t: next(found)) for i in numbers]
        value = y if graph else y.detach()
        aux = aux if graph else _mapped(aux, lambda t: t.detach())
        g = given[0] if isinstance(argnums, int) else tuple(given)
        return (g, (value, aux)) if has_aux else (g, value)

    return slopes


def grad(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Callable:
    """A function that gives the gradient of `func`, which gives a single number.

    >>> gt.func.grad(gt.func.grad(lambda x: x**3))(gt.tensor(2.0))
    tensor(12.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def slopes(*args: Any, **kwargs: Any) -> Any:
        g, rest = both(*args, **kwargs)
        return (g, rest[1]) if has_aux else g

    return slopes


def vjp(func: Callable, *primals: Any, has_aux: bool = False) -> tuple:
    """The value at the primals, and a function from gradients of the value to gradients of the primals.

    >>> y, pull = gt.func.vjp(lambda x: x * x, gt.tensor([1.0, 2.0]))
    >>> pull(gt.tensor([1.0, 1.0]))
    (tensor([2., 4.]),)
    """
    with enable_grad():
        own = [_mapped(p, lambda t: fresh(t, True)) for p in primals]
        flat = _flat(own)
        out = func(*own)
        ys, aux = out if has_aux else (out, None)
    roots = _flat(ys)
    graph = _others(roots, flat)

    def pull(cotangents: Any) -> tuple:
        pairs = [(y, s) for y, s in zip(roots, seeds(roots, _flat(cotangents))) if y.requires_grad]
        if not pairs:
            return tuple(_mapped(p, lambda t: t.detach() * 0) for p in own)
        ys, ss = zip(*pairs)
        found = iter(walk(list(ys), flat, list(ss), retain_graph=True, create_graph=graph, materialize_grads=True))
        return tuple(_mapped(p, lambda t: next(found)) for p in own)

    value = ys if graph else _mapped(ys, lambda t: t.detach())
    return (value, pull, aux) if has_aux else (value, pull)


def jacrev(
    func: Callable, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable:
    """A function that gives the Jacobian of `func` by its arguments `argnums`, row by row of its result.

    >>> gt.func.jacrev(lambda x: x * x)(gt.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(func)
    def slopes(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            full, own = _with_leaves(args, numbers)
            out = func(*full, **kwargs)
            ys, aux = out if has_aux else (out, None)
            graph = _others(_flat(ys), own)

            def rows(y: Tensor) -> Any:
                columns = iter(_jacobian_of(y, own, graph))
                given = [_mapped(full[i], lambda t: next(columns)) for i in numbers]
                return given[0] if isinstance(argnums, int) else tuple(given)

            found = _mapped(ys, rows)
        return (found, aux if graph else _mapped(aux, lambda t: t.detach())) if has_aux else found

    return slopes


def _jacobian_of(y: Tensor, own: list[Tensor], graph: bool) -> list[Tensor]:
    """For each of one's own tensors the derivative of every element of `y`: of the shape of both."""
    count = y.handle.spec.numel
    rows: list[list[Tensor]] = []
    for i in range(count):
        element = y.reshape((count,))[i]
        if element.requires_grad:
            found = walk(element, own, retain_graph=True, create_graph=graph, materialize_grads=True)
            rows.append([g for g in found if g is not None])  # all: zeros stand for none
        else:
            rows.append([t.detach() * 0 for t in own])
    shape = tuple(y.shape)
    return [stack([row[j] for row in rows]).reshape((*shape, *t.shape)) if rows else t.detach().new_zeros((*shape, *t.shape))
            for j, t in enumerate(own)]  # fmt: skip


def jacfwd(func: Callable, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, randomness: str = "error") -> Callable:
    """The numbers of `jacrev`; GT has no forward mode."""
    return jacrev(func, argnums, has_aux=has_aux)


def hessian(func: Callable, argnums: int | tuple[int, ...] = 0) -> Callable:
    """A function that gives the second derivatives of `func` by its arguments `argnums`.

    >>> gt.func.hessian(lambda x: (x**3).sum())(gt.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)


def jvp(func: Callable, primals: tuple, tangents: tuple, *, has_aux: bool = False) -> tuple:
    """The value at the primals, and how it changes along the tangents."""
    if has_aux:
        value, slope = along(lambda *xs: func(*xs)[0], primals, tangents)
        return value, slope, func(*primals)[1]
    return along(func, primals, tangents)


def linearize(func: Callable, *primals: Any) -> tuple:
    """The value at the primals, and a function from tangents to how the value changes along them."""
    value = func(*primals)
    return value, lambda *tangents: jvp(func, primals, tangents)[1]


def stack_module_state(models: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and buffers of models of one class, each stacked along a new first axis, for `vmap`."""
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: expected at least one model")
    if any(type(m) is not type(models[0]) for m in models) or len({m.training for m in models}) > 1:
        raise RuntimeError("stack_module_state: expected models of one class, all in training or none")
    parts = []
    for named in ("named_parameters", "named_buffers"):
        states = [dict(getattr(m, named)()) for m in models]
        parts.append({name: stack([state[name].detach() for state in states]) for name in states[0]})
    wants = {name: p.requires_grad for name, p in models[0].named_parameters()}
    return {name: t.requires_grad_(wants[name]) for name, t in parts[0].items()}, parts[1]


def functional_call(
    module: Any, parameters_and_buffers: Any, args: Any = None, kwargs: dict | None = None, *, tie_weights: bool = True,
    strict: bool = False,
) -> Any:  # fmt: skip
    """A module called with other parameters and buffers in the place of its own; one that is there under several names is
    replaced under all of them (`tie_weights`)."""
    given = parameters_and_buffers
    named = given if isinstance(given, dict) else {k: v for part in given for k, v in part.items()}
    inputs = () if args is None else args if isinstance(args, tuple) else (args,)
    places = {f"{path}.{name}" if path else name: (owner._place_of(name), name)
              for path, owner in module.named_modules(remove_duplicate=False)
              for name, t in owner._members() if isinstance(t, Tensor)}  # fmt: skip
    for name in named:
        if name not in places:
            raise KeyError(f"{type(module).__name__} has no {name!r}")
    if strict and len(named) < len(places):
        raise RuntimeError(f"functional_call: strict=True and no value for {', '.join(n for n in places if n not in named)}")
    tied = {id(places[n][0][places[n][1]]): v for n, v in named.items()} if tie_weights else {}
    before = [(place, last, place[last]) for place, last in places.values()]
    try:
        for name, (place, last) in places.items():
            if name in named or id(place[last]) in tied:
                place[last] = named[name] if name in named else tied[id(place[last])]
        return module(*inputs, **(kwargs or {}))
    finally:
        for place, last, value in before:
            place[last] = value


def functionalize(func: Callable, *, remove: str = "mutations") -> Callable:
    """The function itself: values on the workers never change."""
    return func


def replace_all_batch_norm_modules_(root: Any) -> Any:
    """Batch norms that keep no statistics, in place, so that `vmap` can call them."""
    for module in root.modules():
        if hasattr(module, "running_mean"):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root


def vmap(func: Callable, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: Any = None) -> Callable:
    """`func` over an axis of its arguments. It is called once for each of them: right, and as fast as a loop.

    >>> gt.func.vmap(lambda x: x.sum())(gt.ones(2, 3))
    tensor([3., 3.])
    """

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        dims = tuple(in_dims) if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
        sizes = {t.shape[d] for a, d in zip(args, dims) if d is not None for t in _flat(a)}
        if len(sizes) != 1:
            raise ValueError(f"vmap: expected arguments of one size along the mapped axes, got {sorted(sizes) or 'none'}")

        def at(i: int) -> list:
            return [a if d is None else _mapped(a, partial(select, dim=d, index=i)) for a, d in zip(args, dims)]

        results = [func(*at(i), **kwargs) for i in range(sizes.pop())]
        return _joined(results, out_dims)

    return mapped


def _joined(results: list, dims: Any) -> Any:
    first = results[0]
    if isinstance(first, Tensor):
        return stack(results, axis=dims)
    each = dims if isinstance(dims, (tuple, list)) else (dims,) * len(first)
    if isinstance(first, dict):
        return {k: _joined([o[k] for o in results], dims) for k in first}
    return type(first)(_joined([o[i] for o in results], d) for i, d in enumerate(each))


__getattr__ = missing_names.of(__name__)
