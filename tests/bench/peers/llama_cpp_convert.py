"""Makes a GGUF of a benchmark checkpoint with llama.cpp's own converter.

    PYTHON llama_cpp_convert.py LLAMA_CPP_DIR MODEL_DIR OUT.gguf bf16|q8_0

The converter refuses tokenizers that it does not know by hash, as any freshly trained one; ours splits text
as GPT-2's does, so it is told that.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    llama_cpp, model, out, kind = sys.argv[1:]
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    from conversion.base import (  # type: ignore[import-not-found]  # noqa: PLC0415 - found in LLAMA_CPP_DIR
        TextModel,
    )

    TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", kind, "--outfile", out]
    runpy.run_path(f"{llama_cpp}/convert_hf_to_gguf.py", run_name="__main__")


if __name__ == "__main__":
    main()
