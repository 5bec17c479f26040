"""Dumps of wikis, as Wikimedia publishes them."""

from __future__ import annotations

import hashlib
import json
from xml.sax.saxutils import escape


def page(title, text, *, namespace=0, redirect=False):
    mark = '<redirect title="Other" />' if redirect else ""
    return (
        f"<page><title>{escape(title)}</title><ns>{namespace}</ns><id>1</id>{mark}"
        f"<revision><id>2</id><contributor><id>3</id></contributor>"
        f'<text xml:space="preserve">{escape(text)}</text></revision></page>'
    )


def dump(*pages, version="0.11", language="de"):
    return (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-{version}/" version="{version}" '
        f'xml:lang="{language}"><siteinfo><sitename>W</sitename><namespaces>'
        '<namespace key="-2">Medium</namespace><namespace key="0" case="first-letter" />'
        '<namespace key="6">Datei</namespace>'
        '<namespace key="14">Kategorie</namespace></namespaces></siteinfo>'
        f"{''.join(pages)}</mediawiki>"
    ).encode()


def publish(web, date, files, *, state="done", wiki="dewiki"):
    """Puts a dump on the server; ``files`` is name -> content."""
    listed = {
        name: {
            "size": len(content),
            "url": f"/{wiki}/{date}/{name}",
            "sha1": hashlib.sha1(content).hexdigest(),
        }
        for name, content in files.items()
    }
    jobs = {"articlesdump": {"status": state, "files": listed}, "other": {"status": "waiting"}}
    web.files[f"/{wiki}/{date}/dumpstatus.json"] = json.dumps({"jobs": jobs}).encode()
    for name, content in files.items():
        web.files[f"/{wiki}/{date}/{name}"] = content
    dates = sorted({path.split("/")[2] for path in web.files if path.startswith(f"/{wiki}/2")})
    links = "".join(f'<a href="{other}/">{other}/</a>\n' for other in [*dates, "latest"])
    web.files[f"/{wiki}/"] = links.encode()
