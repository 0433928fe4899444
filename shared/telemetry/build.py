"""The version of this build, as logs, metrics and spans say it."""

from __future__ import annotations

import platform
from importlib import metadata

VERSION = metadata.version("penstock")
PYTHON_VERSION = platform.python_version()
