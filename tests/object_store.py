"""A stand-in for an object store, reached by Beam through a URL as the real ones are."""

from pathlib import Path

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.localfilesystem import LocalFileSystem


class ObjectStore(LocalFileSystem):
    """An object store as far as this program can tell: objects named by URL, kept in a folder."""

    folder = Path()

    @classmethod
    def scheme(cls):
        return "store"

    def _local(self, url):
        return str(self.folder / url.removeprefix("store://"))

    def create(self, path, *args, **kwargs):
        return super().create(self._local(path), *args, **kwargs)

    def open(self, path, *args, **kwargs):
        return super().open(self._local(path), *args, **kwargs)

    def exists(self, path):
        return super().exists(self._local(path))

    def metadata(self, path):
        return FileMetadata(path, Path(self._local(path)).stat().st_size, 0)

    def delete(self, paths):
        super().delete([self._local(path) for path in paths])

    def _list(self, dir_or_prefix):
        for found in super()._list(self._local(dir_or_prefix)):
            name = Path(found.path).relative_to(self.folder).as_posix()
            yield FileMetadata(f"store://{name}", found.size_in_bytes, 0)
