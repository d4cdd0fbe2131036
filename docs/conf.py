"""How Sphinx builds the documentation: `make docs`."""

import pathlib
import shutil

import sparse_autotune

# Sphinx reads nothing outside of its folder.
NOTEBOOK = "../examples/quickstart.ipynb"
HERE = pathlib.Path(__file__).parent
shutil.copyfile(HERE / NOTEBOOK, HERE / "quickstart.ipynb")

project = "sparse_autotune"
version = release = sparse_autotune.__version__
extensions = [
    "myst_nb",  # Markdown, and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]

html_theme = "furo"
html_title = f"sparse_autotune {version}"
html_show_copyright = False
pygments_dark_style = "github-dark"  # furo's own underlines what is imported, like a link
html_static_path = ["static"]
html_extra_path = ["dashboard.html"]  # of its own, not a page
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 3
# The notebook is committed with its outputs, and run by a test: CI has no GPU.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say what is taken and returned, with shapes
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as one list
default_role = "py:obj"
add_module_names = False


def setup(app):
    """Pages link to the notebook, and the notebook to pages, where GitHub finds them."""

    def to_the_copy(app, name, source):
        source[0] = source[0].replace(f"({NOTEBOOK})", "(quickstart.ipynb)")
        if name == "quickstart":
            source[0] = source[0].replace("(../docs/", "(")

    app.connect("source-read", to_the_copy)
