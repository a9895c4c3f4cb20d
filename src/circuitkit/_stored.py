"""Former home of the readers of shipped files, until nobody imports it any more."""

from circuitkit.models import hashes, manifest, stored, stored_file

__all__ = ["hashes", "manifest", "stored", "stored_file"]
