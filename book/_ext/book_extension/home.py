"""Where the book lives, said by its pages: canonical address, picture, list of pages, and what stands where no page is.

All of it comes from `repository.url` in _config.yml. While that address ends in .invalid, no button leads there and no
page names an address: a description, a title and the page for addresses that do not exist are all that is left.
"""

from urllib.parse import urlparse

from tools.publish.home import home, is_placeholder

from . import theme

NEED_AN_ADDRESS = (
    "launch_buttons",
    "repository_url",
    "use_repository_button",
    "use_edit_page_button",
    "use_issues_button",
)
NOT_HERE = """<h1>No page has this address</h1>
<p>It may have moved. <a href="{root}index.html">The first page</a> lists all chapters, and
<a href="{root}search.html">the search</a> finds a word in any of them.</p>"""


def hide_buttons(app, config) -> None:
    options = config.html_theme_options
    if is_placeholder(options.get("repository_url", "")):
        for name in NEED_AN_ADDRESS:
            options.pop(name, None)


def say_where(app, config) -> None:
    config.html_baseurl = config.ogp_site_url = home().pages
    root = config.notfound_urls_prefix = urlparse(home().pages).path or "/"
    config.notfound_context = {
        "title": "No page has this address",
        "body": NOT_HERE.format(root=root),
    }


def tags(app, pagename, templatename, context, doctree) -> None:
    told = context.get("metatags") or ""
    if not home().public:
        told = theme.SHARED_ADDRESS.sub("", told, pagename, needed="og:title" in told)
    if pagename == app.config.notfound_pagename:  # it stands in for pages of any folder
        told = (
            f'<base href="{app.config.notfound_urls_prefix}"><meta name="robots" content="noindex">'
            + told
        )
    context["metatags"] = told


def setup(app) -> None:
    app.setup_extension("sphinxext.opengraph")
    app.setup_extension("notfound.extension")
    if home().public:
        app.setup_extension("sphinx_sitemap")
        app.config.sitemap_url_scheme, app.config.sitemap_excludes = (
            "{link}",
            ["404.html", "search.html"],
        )
    app.connect("config-inited", hide_buttons, priority=100)
    app.connect("config-inited", say_where, priority=100)
    app.connect("html-page-context", tags, priority=950)
