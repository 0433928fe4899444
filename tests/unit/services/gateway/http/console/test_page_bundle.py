"""A page is one document: its sheets and modules stand in it, and its policy names them by their digests."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from services.gateway.http.console.page_bundle import bundle_page, bundle_scripts
from services.gateway.http.console.site_files import CONSOLE, DOCS, site_files, site_pages

HEAD = '<link rel="stylesheet" href="/console/files/{}">'
PAGE = f"""<head>
    {HEAD.format("a.css")}
    {HEAD.format("b.css")}
    <script type="module" src="/console/files/main.js"></script>
  </head>"""
FILES = {
    "a.css": "p { color: red; }",
    "b.css": "p { color: blue; }",
    "main.js": 'import { one, Two } from "./parts.js";\nimport { twice } from "./twice.js";\nuse(one);\n',
    "parts.js": "export const one = 1;\nexport class Two {}\nexport async function later() {}\nlet a = 3;\n",
    "twice.js": 'import { one } from "./parts.js";\nexport function twice() { return 2 * one; }\n',
}


def digests(html: str, element: str) -> list[str]:
    texts = re.findall(rf"<{element}[^>]*>(.*?)</{element}>", html, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]


def test_sheets_stand_in_the_order_in_which_they_were_named() -> None:
    html = bundle_page(PAGE, FILES).html.decode()
    assert "<style>p { color: red; }\np { color: blue; }</style>" in html
    assert "/console/files/" not in html


def test_each_module_runs_once_after_those_that_it_imports() -> None:
    script = bundle_scripts("main.js", FILES)
    begun = re.findall(r"^const (module_\w+) = ", script, re.MULTILINE)
    assert begun == ["module_parts", "module_twice", "module_main"]
    assert "return { one, Two, later };" in script
    assert "const { one, Two } = module_parts;" in script
    assert not re.search(r"^\s*(import|export) ", script, re.MULTILINE)


def test_a_file_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(KeyError, match=r"twice\.js"):
        bundle_page(PAGE, {name: text for name, text in FILES.items() if name != "twice.js"})


@pytest.mark.parametrize("name", [CONSOLE, DOCS])
@pytest.mark.parametrize("needs_keys", [False, True])
def test_a_pages_policy_lets_in_what_stands_in_it_alone(name: str, needs_keys: bool) -> None:
    page = site_pages(needs_keys=needs_keys)[name]
    html, policy = page.plain.decode(), page.headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert [rules["script-src"]] == digests(html, "script")
    assert [rules["style-src"]] == digests(html, "style")
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    assert "/console/files/" not in html.replace("/console/files/penstock.svg", "")
    assert ('data-keys="none"' in html) == (name == CONSOLE and not needs_keys)


def test_no_script_can_end_the_element_that_it_stands_in() -> None:
    for name, text in site_files().items():
        if name.endswith((".js", ".css")):
            assert not re.search(r"</(script|style)|<!--", text, re.IGNORECASE), name


def test_every_import_and_export_of_a_script_is_written_as_the_bundle_reads_it() -> None:
    for name, text in site_files().items():
        if name.endswith(".js"):
            script = bundle_scripts(name, site_files())
            assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE), name
            assert "import(" not in text, name
