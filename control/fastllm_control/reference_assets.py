"""Style and script of the `/docs` page, and the policy that lets in nothing but them, by their hashes."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --quiet: #666; --line: #8884; --code: #8881 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
header { position: sticky; top: 0; background: Canvas; padding: .5rem 0 }
header { border-bottom: 1px solid var(--line) }
header input { font: inherit; width: 20rem; max-width: 60%; padding: .2rem .5rem }
header button { font: inherit }
nav a { margin-right: .8rem; white-space: nowrap }
h2 { margin: 2rem 0 .3rem }
details { border-top: 1px solid var(--line); padding: .35rem 0; scroll-margin-top: 4rem }
summary { cursor: pointer }
code, pre { font-family: ui-monospace, monospace; font-size: .92em; background: var(--code) }
pre { padding: .6rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
.method { display: inline-block; width: 4.5rem; font-weight: 600 }
.introduction { white-space: pre-line }
table { border-collapse: collapse; margin: .5rem 0 1rem; width: 100% }
caption { text-align: left; font-weight: 600 }
td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
td { border-top: 1px solid var(--line) }
td:first-child { white-space: nowrap }
.quiet { color: var(--quiet) }
[hidden] { display: none }
"""

SCRIPT = """
"use strict";
const search = document.getElementById("search");
const entries = Array.from(document.querySelectorAll("details"));
const texts = entries.map(entry => entry.textContent.toLowerCase());
const sections = Array.from(document.querySelectorAll("section"));
const found = document.getElementById("found");
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\\s+/).filter(word => word);
  let count = 0;
  entries.forEach((entry, place) => {
    entry.hidden = !words.every(word => texts[place].includes(word));
    count += entry.hidden ? 0 : 1;
  });
  for (const section of sections) section.hidden = !section.querySelector("details:not([hidden])");
  found.textContent = words.length ? `${count} of ${entries.length}` : "";
});
document.getElementById("all").addEventListener("click", () => {
  const open = !entries.some(entry => entry.open);
  for (const entry of entries) entry.open = open;
});
const follow = () => {
  const entry = document.getElementById(location.hash.slice(1));
  if (entry && entry.tagName === "DETAILS") { entry.open = true; entry.scrollIntoView(); }
};
addEventListener("hashchange", follow);
follow();
"""


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_source(STYLE)}; script-src {_source(SCRIPT)};"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
