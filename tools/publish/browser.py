"""Find a Chromium that is installed on this machine."""

import shutil

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def installed_chromium() -> str | None:
    """The path of an installed Chromium; None leaves the choice to Playwright's own download."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in found if path), None)
