"""The documentation as a site: ``make docs`` builds it in build/docs."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bert_tf import __version__  # noqa: E402
from tools import flag_reference, settings_reference  # noqa: E402

project = "bert_tf"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
highlight_language = "text"
# Quotation marks and hyphens stay as they are: most of them belong to commands.
smartquotes = False

html_theme = "furo"
html_title = f"bert_tf {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/_static/search_scores.js")  # Sphinx opens it as it is
html_copy_source = False
html_show_copyright = False

# Signatures and docstrings need no TensorFlow, which takes seconds to import.
autodoc_mock_imports = ["tensorflow", "horovod"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_use_ivar = True


def _write_generated_pages(app):
    generated = Path(app.srcdir) / "reference" / "generated"
    flag_reference.write_pages(generated / "commands")
    settings_reference.write_page(generated / "settings.md")


def setup(app):
    """Has the pages that are made from declarations written before all pages are read."""
    app.connect("builder-inited", _write_generated_pages)
