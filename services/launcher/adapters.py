"""The adapters that a stack begins with, in the file that its workers follow."""

from __future__ import annotations

from services.launcher.options import StackOptions
from shared.errors import InvalidRequest
from shared.files.adapter_file import WantedAdapter, put_adapters


def prepare_adapter_file(options: StackOptions) -> None:
    """A file in the state directory begins anew, one of the user's goes on. Raises InvalidRequest."""
    file = options.adapter_file
    try:
        if file.parent == options.state_dir:
            file.unlink(missing_ok=True)
        if options.adapters:
            base = options.models[0].served_name
            put_adapters(file, [WantedAdapter(base, *adapter) for adapter in options.adapters])
    except OSError as error:
        raise InvalidRequest(f"the adapter file {file} cannot be written ({error.strerror})") from error
