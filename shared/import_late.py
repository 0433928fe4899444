"""Leave parts of a library unread until somebody uses them, where it imports all that it has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any


def import_late(modules: Sequence[str], *, until: str = "") -> None:
    """Have each of `modules` read when it is first asked for something, and not when it is imported; to be
    called before anything imports them. Where somebody imports the module `until` all are read first.
    """
    sys.meta_path.insert(0, _LateFinder(modules, until))


class _LateModule(ModuleType):
    """A module that is imported and not read yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)  # whoever looks around among modules asks for such
        self.read()
        return getattr(self, name)

    def read(self) -> None:
        loader = self.__spec__ and self.__spec__.loader
        assert isinstance(loader, _LateLoader)
        loader.read(self)


class _LateLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = RLock()
        self._began = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Read nothing yet."""

    def read(self, module: ModuleType) -> None:
        """Read it now, unless that is what is being done; whoever comes meanwhile waits."""
        with self._lock:
            if self._began:
                module.__class__ = ModuleType
                return
            self._began = True
            self._loader.exec_module(module)
            module.__class__ = ModuleType

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as get_source


class _LateFinder(MetaPathFinder):
    def __init__(self, modules: Sequence[str], until: str) -> None:
        self._modules = modules
        self._until = until

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._until:
            self._read_all()
        if fullname not in self._modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec

    def _read_all(self) -> None:
        unread, self._modules = self._modules, ()
        for name in unread:
            module = sys.modules.get(name)
            if isinstance(module, _LateModule):
                module.read()
