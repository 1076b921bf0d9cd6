"""The one style sheet, inline in each page, and its hash, by which alone the pages' policy lets it in."""

from __future__ import annotations

import base64
import hashlib

from tireless.web.markup import Html

STYLE = Html("""
:root{color-scheme:light dark;
--fg:#1c2024;--dim:#646c76;--bg:#fff;--line:#dde1e6;
--ok:#0a6b2d;--warn:#8a5300;--bad:#b3161b}
@media(prefers-color-scheme:dark){:root{
--fg:#e3e6ea;--dim:#98a1ab;--bg:#15181b;--line:#31373d;
--ok:#5fd38a;--warn:#f0b352;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:90rem;padding:1rem 1.5rem 3rem;
font:14px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
h1{font-size:1.25rem;margin:0}h2{font-size:1rem;margin:1.8rem 0 .4rem}
a{color:inherit}header{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:500;white-space:nowrap}td{overflow-wrap:anywhere;min-width:3rem}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.dim{color:var(--dim)}.ok{color:var(--ok)}.warn{color:var(--warn)}.bad{color:var(--bad)}
code{font:12px/1.4 ui-monospace,monospace}time{white-space:nowrap}
""")
STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
