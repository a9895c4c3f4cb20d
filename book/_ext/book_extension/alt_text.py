"""Carry a picture's alt text from the notebook's output to the page, and refuse a picture without one."""

from docutils import nodes
from myst_nb.core.render import NbElementRenderer
from sphinx.util import logging

log = logging.getLogger(__name__)
plain = NbElementRenderer.render_image


def with_alt(self, data):
    """myst-nb reads width and height from an output's metadata, but not alt."""
    images = plain(self, data)
    alt = data.output_metadata.get(data.mime_type, {}).get("alt")
    for image in images:
        if alt:
            image["alt"] = alt
            image["classes"] = [*image.get("classes", []), "ck-picture", "dark-light"]
    return images


def check(app, doctree) -> None:
    for image in doctree.findall(nodes.image):
        if not image.get("alt", "").strip():
            log.warning("image without alt text: %s", image.get("uri", "?")[:80], location=image)


def setup(app) -> None:
    NbElementRenderer.render_image = with_alt
    app.connect("doctree-read", check)
