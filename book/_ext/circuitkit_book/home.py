"""No button leads to a placeholder: while the address in _config.yml ends in .invalid, the book has none that need it."""

from tools.publish.home import is_placeholder

NEED_AN_ADDRESS = (
    "launch_buttons",
    "repository_url",
    "use_repository_button",
    "use_edit_page_button",
    "use_issues_button",
)


def hide_buttons(app, config) -> None:
    options = config.html_theme_options
    if is_placeholder(options.get("repository_url", "")):
        for name in NEED_AN_ADDRESS:
            options.pop(name, None)


def setup(app) -> None:
    app.connect("config-inited", hide_buttons, priority=100)
