"""Tell this library from another project's, which owns the distribution name `circuitkit` on the package index."""

from importlib import metadata

_MESSAGE = """\
Another project's distribution, 'circuitkit' {version}, is installed in this environment. It uses the same import name \
as this library ('circuitkit-book'), so the two overwrite each other's files.
Expected: only 'circuitkit-book'. Do this, then restart Python:
    pip uninstall -y circuitkit circuitkit-book
and install this library again as its README says."""


def refuse_namesake() -> None:
    """Raise `ImportError` when the unrelated distribution `circuitkit` is installed beside this one."""
    try:
        version = metadata.version("circuitkit")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(_MESSAGE.format(version=version))
