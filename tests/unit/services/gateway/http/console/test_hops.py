"""The console knows of each phase whose time it is, as the services do."""

from __future__ import annotations

import re

from services.gateway.http.console.site_files import site_files
from shared.roles import _HOPS


def test_the_console_has_the_hops_of_the_services() -> None:
    text = site_files()["hops.js"]
    assert dict(re.findall(r'\["(\w+)", "(\w+)"\]', text)) == dict(_HOPS)
