"""Every command of the project under one name, and from Python, in scripts and notebooks.

    scan-tfrecords COMMAND ...

    from scan_tfrecords import build, train
    dataset = build("scans", "data/oct", splits="patient")
    run = train(dataset, "runs/oct", epochs=3)
    run.predict("new_scans")

A command's module is imported only when the command is called: the build does not import TensorFlow
and the trainer does not import Beam. From Python each command runs in a process of its own, so the
memory of a GPU is free again when a training ends; one that fails raises a `CommandError`.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import html
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tfrecord_io

_Path = str | os.PathLike[str]
_Paths = _Path | Iterable[Any]

__all__ = ["CommandError", "Dataset", "Evaluation", "Run", "build", "evaluate", "predict", "train"]

#: By command: the module whose `main` it calls, and its purpose. `tfrecord_io` has several
#: commands, so it also gets the command's name.
COMMANDS = {
    "build": ("pipelines.build_tfrecords", "make a dataset from an image collection"),
    "verify": ("tfrecord_io.__main__", "recount and re-hash a dataset"),
    "audit": ("tfrecord_io.__main__", "look for leaks, copies, contradictions and shortcuts"),
    "train": ("train.run", "train a network on a dataset"),
    "evaluate": ("train.evaluate", "measure a trained network on another dataset"),
    "compare": ("train.extras.compare", "compare the settings and measures of trained networks"),
    "predict": ("train.predict", "predict image files"),
    "benchmark": ("train.benchmark", "measure images per second by number of replicas"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command by its name and arguments, by default those of the process.

    Returns:
        the exit code of the command; 0 after the list of commands or the version, 2 for an unknown
        command.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # else a worker looks into the working folder first
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    listed = "\n".join(f"  {command:<11} {purpose}" for command, (_, purpose) in COMMANDS.items())
    usage = f"usage: scan-tfrecords COMMAND ...\n\n{listed}\n"
    usage += "\nEach has its own --help; --version prints the version."
    if name in ("-h", "--help"):
        print(usage)
    elif name == "--version":
        print(f"scan-tfrecords {importlib.import_module('tfrecord_io.version').VERSION}")
    elif name not in COMMANDS:
        print(f"error: expected a command, received {name!r}\n\n{usage}", file=sys.stderr)
        return 2
    else:
        module, _ = COMMANDS[name]
        arguments = [name, *arguments] if module == "tfrecord_io.__main__" else arguments
        try:
            main_of_module = importlib.import_module(module).main
        except KeyboardInterrupt:
            return 130
        return main_of_module(arguments)
    return 0


class CommandError(Exception):
    """A command that failed, with its message.

    Attributes:
        exit_code: 2 for wrong usage or unsuitable input, 1 for a failure, as of the command.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True)
class _Result:
    """A folder that a command has written, whose page a notebook shows."""

    path: str

    def _repr_html_(self) -> str | None:
        page = Path(self.path) / "report.html"
        if not page.is_file():
            return None
        content = html.escape(page.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{content}" style="width: 100%; height: 40em; border: 0"></iframe>'


class Dataset(_Result):
    """A finished dataset, by its folder or URL."""

    @property
    def manifest(self) -> tfrecord_io.Manifest:
        """Its facts, such as `splits` and `label_names`; raises `tfrecord_io.ManifestError`."""
        import tfrecord_io

        return tfrecord_io.Manifest.load(self.path)

    def batches(self, split: str = "train", batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """Returns (images, labels) by batch, see `tfrecord_io.make_batches`."""
        import tfrecord_io

        return tfrecord_io.make_batches(self.path, split=split, batch_size=batch_size, **options)


class Evaluation(_Result):
    """What was measured on a dataset, by the folder or URL of the results."""

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of its metrics.json."""
        from tfrecord_io.stores.folder import Folder

        return json.loads(Folder(self.path).read("metrics.json"))


class Run(Evaluation):
    """A finished training run."""

    def predict(self, inputs: _Paths, **options: Any) -> list[dict[str, Any]]:
        """See `predict`."""
        return predict(self, inputs, **options)


def build(input: _Path | None, output: _Path, **options: Any) -> Dataset:
    """Builds a dataset, or goes on with it: `scan-tfrecords build`.

    Args:
        input: a folder, an archive or a URL; None for a source that needs none.
        output: the folder or URL of the dataset.
        **options: the other flags of the command by their names, such as `splits="patient"`. A
            list or a mapping is what the flag takes as `A,B` or `A=B`.
    """
    words = [] if input is None else ["--input", input]
    _run("build", [*words, *_words({"output": output, **options})])
    return Dataset(os.fsdecode(output))


def train(dataset: Dataset | _Path, workdir: _Path, **options: Any) -> Run:
    """Trains a network, or goes on with it: `scan-tfrecords train`.

    Args:
        dataset: what to train on.
        workdir: the folder or URL of the run.
        **options: see `build`, such as `epochs=3`.
    """
    _run("train", ["--data", dataset, *_words({"workdir": workdir, **options})])
    return Run(os.fsdecode(workdir))


def evaluate(
    run: Run | _Paths, dataset: Dataset | _Path, output: _Path | None = None, **options: Any
) -> Evaluation:
    """Measures a network on another dataset: `scan-tfrecords evaluate`.

    Args:
        run: a finished run; of several, the mean answers, and `output` is needed.
        dataset: what to measure on.
        output: the folder of the results; by default, as of the command, in that of the run.
        **options: see `build`, such as `split="test"`.
    """
    runs = _as_list(run)
    more = _words({"output": output, **options})
    _run("evaluate", ["--run", *runs, "--data", dataset, *more])
    if output is None:
        from train.evaluate import folder_of

        first, data = (getattr(given, "path", given) for given in (runs[0], dataset))
        output = folder_of(first, Dataset(data).manifest, _text(options.get("split", "test")))
    return Evaluation(os.fsdecode(output))


def predict(run: Run | _Paths, inputs: _Paths, **options: Any) -> list[dict[str, Any]]:
    """Predicts image files, or those in folders: `scan-tfrecords predict --format json`.

    Args:
        run: a finished run; of several, the mean answers.
        inputs: files, or folders of them.
        **options: see `build`, such as `by="patient"`.

    Returns:
        for each image `path`, `predicted` and `probabilities` by class, or `reject`, the reason
        why it was not predicted. By patient, `patient` and the number of `images`, too, and the
        `path` of the image that decided most.
    """
    words = ["--format=json", *_words(options)]
    words += ["--run", *_as_list(run), "--input", *_as_list(inputs)]
    return json.loads(_run("predict", words, has_answer=True))


def _as_list(paths: Any) -> list[Any]:
    return [paths] if isinstance(paths, str | bytes | os.PathLike | _Result) else list(paths)


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields the flags of options; None leaves an option at its default."""
    for name, value in options.items():
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif value is not None:
            yield f"--{name}={_text(value)}"


def _text(value: Any) -> str:
    """Returns what a flag takes for a value from Python."""
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        csv.writer(line := io.StringIO(), lineterminator="").writerow(value)
        value = line.getvalue()
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)


def _run(command: str, words: Iterable[Any], *, has_answer: bool = False) -> bytes:
    """Runs a command and shows what it prints as it comes.

    Returns:
        what a command that `has_answer` prints to standard output, which is not shown.

    Raises:
        CommandError: if the command fails without an answer. `predict` ends with 1 if a file could
            not be read, and has answered for the others.
    """
    # A word can be a result, its path, or what the user gave.
    paths = (getattr(word, "path", None) or os.fspath(word) for word in words)
    program = [sys.executable, "-m", "scan_tfrecords", command, *paths]
    # A user's own train.py or folder pipelines is not imported: this package comes first.
    folders = filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")])
    environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(folders)}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    decoder, said = codecs.getincrementaldecoder("utf-8")("replace"), ""
    with tempfile.TemporaryFile() as printed:
        stdout, stderr, stream = subprocess.PIPE, subprocess.STDOUT, sys.stdout
        if has_answer:
            stdout, stderr, stream = printed, subprocess.PIPE, sys.stderr
        with subprocess.Popen(program, stdout=stdout, stderr=stderr, env=environment) as process:
            pipe: Any = process.stderr if has_answer else process.stdout
            try:
                while chunk := os.read(pipe.fileno(), 1 << 16):
                    text = decoder.decode(chunk)
                    said = (said + text)[-10_000:]
                    stream.write(text)
                    stream.flush()
            except KeyboardInterrupt:
                # A training saves its state then. A terminal has sent it to the process already.
                process.send_signal(signal.SIGINT)
                raise
        printed.seek(0)
        answer = printed.read()
    if process.returncode and not answer:
        message = f"\n{said}".rpartition("\nerror: ")[2].strip()
        message = message or f"the command ended with exit code {process.returncode}"
        raise CommandError(message, process.returncode)
    return answer


if __name__ == "__main__":
    sys.exit(main())
