"""The settings of a service as a table for its page, made from its configuration class."""

from __future__ import annotations

from typing import Any

from shared.config.fields import MODEL_SETTINGS, ConfigField, fields_of

HEADING = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"


def settings_table(config_type: type[Any], base: type[Any] | None = None) -> str:
    """Return a row for each setting of `config_type` that `base` has not, or has with another default."""
    inherited = fields_of(base) if base else {}
    rows = [
        _row(field, getattr(config_type(), name))
        for name, field in fields_of(config_type).items()
        if name not in inherited or getattr(base(), name) != getattr(config_type(), name)  # type: ignore[misc]
    ]
    return HEADING + "".join(rows)


def _row(field: ConfigField, default: object) -> str:
    table = " `[model]`" if field.name in MODEL_SETTINGS else ""
    meaning = field.rule.help.replace("|", "\\|").replace("<", "&lt;")
    return f"| `{field.name}` | {_shown(default)} | {_allowed(field)} | {meaning}{table} |\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return f"`{value}`" if value else ""


def _allowed(field: ConfigField) -> str:
    rule = field.rule
    if rule.choices:
        return ", ".join(rule.choices)
    if rule.minimum is None and rule.maximum is None:
        return {bool: "true, false", tuple[str, ...]: "a list"}.get(field.hint, "")
    low = "" if rule.minimum is None else f"from {_bound(rule.minimum)}"
    return f"{low} to {_bound(rule.maximum)}".strip() if rule.maximum is not None else low


def _bound(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"
