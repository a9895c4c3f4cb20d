"""The open questions: a marker on their page becomes a link to the form that takes answers, where the repository has an address."""

from docutils import nodes
from tools.publish.home import home

MARK = "answer form"
WAITS = "When the repository of this book has an address, a form there takes answers."


def read(app, doctree) -> None:
    for comment in list(doctree.findall(nodes.comment)):
        if comment.astext().strip() == MARK:
            comment.replace_self(sentence(home().answer_form))


def sentence(form: str) -> nodes.paragraph:
    """A link to the form, or a sentence that there is none yet."""
    if not form:
        return nodes.paragraph("", WAITS)
    link = nodes.reference("", "The form for answers", refuri=form)
    return nodes.paragraph("", "", link, nodes.Text(" asks for the number, its null and the code."))


def setup(app) -> None:
    app.connect("doctree-read", read)
