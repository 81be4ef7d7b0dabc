"""The settings that give weights their meaning: with others they may fit, and predict wrongly.

A task names the keys that may change: those that only steer training, and those of what is reported
of the predictions. All others count, so that a new key does until someone names it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Of every task's backbone; `frozen` norms have no state of the optimizer, which is compared itself.
FREE_NORM_KEYS = ("batch_norm.momentum", "batch_norm.frozen", "batch_norm.synchronized")
FREE_BACKBONE_KEYS = (
    "backbone.drop_block",
    "backbone.drop_connect_rate",
    "backbone.gradient_checkpointing",
    *(f"backbone.{key}" for key in FREE_NORM_KEYS),
)


class Setting(NamedTuple):
    """A setting that gives weights their meaning."""

    key: str  # in the experiment file
    value: Any
    parts: tuple[str, ...] = ()  # of the model, whose weights it concerns; none: of all


def settings_of_model(
    model: Mapping[str, Any],
    *,
    free: Collection[str],
    parts: Mapping[str, tuple[str, ...]],
) -> tuple[Setting, ...]:
    """Returns the settings of a `model` section that give weights their meaning.

    Args:
        model: the section, as a tree.
        free: keys in it that may change, with all beneath them.
        parts: of the model whose weights the keys of the section's first level concern; those that
            are not named concern all.
    """
    return tuple(
        Setting(f"model.{key}", value, parts.get(key.partition(".")[0], ()))
        for key, value in values_by_key(model)
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    )


def values_by_key(tree: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a tree by key, such as `model.anchors.size`; lists are tuples."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from values_by_key(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", _with_tuples(value)


def changed_settings(before: Sequence[Setting], now: Sequence[Setting]) -> list[str]:
    """Returns a line with both values for each setting that differs; `auto` differs from none."""
    old, new = ({setting.key: setting.value for setting in found} for found in (before, now))
    return [
        f"{key}: {yaml_value(old.get(key))} -> {yaml_value(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if _differ(old.get(key), new.get(key))
    ]


def unexpected_settings(
    settings: Iterable[Setting], stored: Mapping[str, Any], *, owner: str, loaded: Collection[str]
) -> list[str]:
    """Returns a sentence for each setting that weights of an earlier run do not expect.

    Args:
        settings: of the model.
        stored: values of that run by key; what it does not have, or leaves `auto`, is not compared.
        owner: of the weights, for the sentences.
        loaded: paths of the variables that took weights: settings of other parts do not count.
    """
    roots = {path.partition("/")[0] for path in loaded}
    return [
        f"{key} is {yaml_value(value)}; weights of {owner} expect {yaml_value(stored[key])}."
        for key, value, parts in settings
        if key in stored
        and _differ(stored[key], value)
        and (not parts or any(root.startswith(parts) for root in roots))
    ]


def yaml_value(value: Any) -> str:
    """Returns a value as a user writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(yaml_value, value))}]"
    return str(value)


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list | tuple) else value


def _differ(one: Any, other: Any) -> bool:
    return one != other and "auto" not in (one, other)
