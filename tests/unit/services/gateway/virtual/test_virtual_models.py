"""A changed file of virtual models counts from then on; one that cannot be used changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.gateway.config import GatewayConfig
from services.gateway.virtual.virtual_models import VirtualModels
from shared.config.fields import ConfigError
from tests.support.metric import value

RULES = '[[{name}.rules]]\nto = "{model}"\n'


def write(file: Path, name: str, model: str) -> None:
    file.write_text(RULES.format(name=name, model=model))


async def test_a_change_counts_and_a_wrong_file_does_not(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    write(file, "auto", "small")
    models = VirtualModels(file)
    write(file, "best", "much-larger")
    await models.reload()
    assert (models.find("auto"), [model.name for model in models.all()]) == (None, ["best"])
    file.write_text("nothing")
    await models.reload()
    assert [model.name for model in models.all()] == ["best"]
    assert value("penstock_virtual_models_stale") == 1
    write(file, "auto", "small")
    await models.reload()
    assert [model.name for model in models.all()] == ["auto"]
    assert value("penstock_virtual_models_stale") == 0


async def test_without_a_file_there_are_none_and_nobody_looks_for_one() -> None:
    models = VirtualModels.of(GatewayConfig())
    await models.watch_file()
    assert (models.find("auto"), list(models.all())) == (None, [])


def test_a_gateway_does_not_start_with_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        VirtualModels.of(GatewayConfig(virtual_models=str(tmp_path / "none.toml")))
