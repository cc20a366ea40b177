"""Lists collections laid out as public ones are, and says which are read right at the first try.

    python benchmarks/public_layouts.py

Each case is a drawn tree (braces as in bash), perhaps with a table, in the shape of a collection
that people have; the flags that a user would type first; and what the listing must find. A case is
`right`; or `refused`, if the message names what is typed next, and that reads it right; or `WRONG`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image

from pipelines import options
from pipelines.listing.classes import with_classes
from pipelines.listing.listing import list_images
from pipelines.sources.factory import open_source
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal.errors import UserError


@dataclasses.dataclass(frozen=True)
class Case:
    """A collection; its classes and splits are names with spaces between them."""

    name: str
    tree: str  # paths, with braces as in bash
    classes: str
    images: int  # how many are listed
    patients: int = 0  # how many are known
    splits: str = "train"
    tables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # content by path
    flags: str = ""  # what a user types first, besides --input; `{dir}` is the folder
    then: str = ""  # what is typed after a refusal; its flags are in the message
    converter: str = ""  # or this code is


def table(head: str, rows: Iterable[str]) -> str:
    """Returns a CSV file."""
    return "\n".join([head, *rows]) + "\n"


def labels(columns: str, more: str = "", file: str = "l.csv") -> str:
    """Returns the flags for a table with these names of columns."""
    named = f"--columns {shlex.quote(columns)}" if columns else ""
    return f"--labels {{dir}}/{file} {named} {more}"


N6 = range(1, 7)
BINARY, PERSON = "--label_columns A,B", "--patient_regex '(p[0-9]+)/'"
MASKS, HO = "--exclude_regex '(?i)(^|[^a-z])({})([^a-z]|$)'", "--exclude_regex _1stHO"

CASES = (
    Case("Kermany: chest X-rays", "x/{train,val,test}/{NORMAL/IM-,BAC/person}{1..6}_1.jpeg",
         "BAC NORMAL", 36, splits="test train val"),
    Case("Kermany: OCT", "{,oct/}'OCT2017 '/{train,test}/{CNV/CNV,NORMAL/NORMAL}-{1..6}-1.jpeg",
         "CNV NORMAL", 24, patients=6, splits="test train"),
    Case("Kather: a folder a class", "NCT-CRC/{ADI,BACK,TUM}/X-{1..6}.tif", "ADI BACK TUM", 18),
    Case("Brain tumours: Training and Testing", "{Training,Testing}/{glioma,notumor}/Tr-{1..6}.jpg",
         "glioma notumor", 24, splits="test train"),
    Case("ImageNet: WordNet IDs", "{train,val}/n0144{0764,3537}/X_{1..6}.JPEG",
         "n01440764 n01443537", 24, splits="train val"),
    Case("Roboflow: classes", "{train,valid,test}/{benign,other}/S{1..6}_jpg.rf.0123456789ab.jpg",
         "benign other", 36, splits="test train val"),
    Case("Kvasir: hyphens in classes", "kv/{dyed-p,normal-c}/x{1..6}.jpg", "dyed-p normal-c", 12),
    Case("grades in folders of numbers", "{train,test}/{0..4}/{1..6}.png", "0 1 2 3 4", 60,
         splits="test train"),
    Case("what systems leave", "{a,b}/{1..6}.png __MACOSX/a/._1.png .git/a/1 a.md", "a b", 12),
    Case("one class", "scans/{1..6}.png", "scans", 6, then="--layout class"),
    Case("BreakHis: benign/SOB/type/slide/magnification",
         "breast/{benign/SOB/adenosis/A,malignant/SOB/ductal/D}{1..3}/{40,100}X/B-{1..2}.png",
         "benign malignant", 24, then="--layout class"),
    Case("IDC: patients of numbers, classes 0 and 1", "1025{1..6}/{0,1}/1025_idx5_x{1..4}.png",
         "0 1", 48, patients=6, then="--layout patient/class"),
    Case("LC25000: classes below two organs", "x/{lung/lung,colon/colon}_{aca,n}/l{1..6}.jpeg",
         "colon_aca colon_n lung_aca lung_n", 24, then="--layout '*/class'"),
    Case("patients below classes", "{CNV/p{1..6},DRUSEN/p{7..12}}/{1..3}.png", "CNV DRUSEN", 36,
         patients=12, then="--layout class/patient"),
    Case("patients above classes", "{P{1..10}/CNV,P{11..20}/NORMAL}/{1..2}.jpeg", "CNV NORMAL", 40,
         patients=20, then="--layout patient/class"),
    Case("splits, classes, patients", "{train,test}/{a,b}/p{1..6}/1.png", "a b", 24, patients=6,
         splits="test train", then="--layout split/class/patient"),
    Case("hospitals above classes above patients", "h{1,2}/{CNV/p{1..3},DME/p{4..6}}/{1..4}.png",
         "CNV DME", 48, patients=6, then="--layout '*/class/patient'"),
    Case("folds", "fold{1..5}/{benign,malignant}/{1..6}.png", "benign malignant", 60,
         then="--layout '*/class'"),
    Case("Train_Data and Validation_Data", "{Train_Data,Validation_Data}/{a,b}/{1..6}.png", "a b",
         24, splits="train val", then="--layout split/class"),
    Case("visits below classes", "{stable,worse}/visit_{1,2}/{1..6}.png", "stable worse", 24,
         then="--layout class"),
    Case("each split in its folder", "{train/train,test/test}/{a,b}/{1..6}.png", "a b", 24,
         splits="test train", then="--layout '*/split/class'"),
    Case("a picture beside the folders", "{a,b}/{1..6}.png cover.jpg", "a b", 12,
         then="--exclude_regex '^[^/]*$'"),
    Case("COVID radiography: masks", "COVID-19/{COVID,Normal}/{images,masks}/X-{1..6}.png",
         "COVID Normal", 12, then=f"{MASKS.format('masks')} --layout class"),
    Case("BUSI: masks beside images", "BUSI/{benign,normal}/x' ('{1..6}')'{,_mask}.png",
         "benign normal", 12, then=MASKS.format("mask")),
    Case("DRIVE: vessels and masks", "training/{images,mask,1st_manual}/{1..6}_training.png",
         "images", 6, then=f"{MASKS.format('1st_manual|mask')} --layout class"),
    Case("CHASE: drawings beside images", "CHASEDB1/Image_0{1..6}{L,R}{.jpg,_1stHO.png}", "L R", 12,
         flags=HO, then=f"--label_regex '([LR])\\.jpg' {HO}"),
    Case("Shenzhen: the class in the name", "CXR_png/CHNCXR_000{1..6}_{0,1}.png", "0 1", 12,
         then="--label_regex '_([01])\\.png$'"),
    Case("Oxford pets: the breed in the name", "{images,annotations}/{abc,pug}_{1..6}.jpg",
         "abc pug", 12, then=f"--label_regex '^([a-z]+)_' {MASKS.format('annotations')}"),
    Case("MURA: studies of patients",
         "MURA/train/XR_{ELBOW/p{1..3},HAND/p{4..6}}/study{1,2}_{negative,positive}/i1.png",
         "negative positive", 24, patients=6,
         then="--label_regex 'study[0-9]+_([a-z]+)/' --patient_regex '(p[0-9]+)/'"),
    Case("Duke OCT: the patient's number behind the class",
         "{AMD,DME,NORMAL}{1..6}/TIFFs/8bitTIFFs/00{1..3}.tif", "AMD DME NORMAL", 54, patients=18,
         then="--label_regex '^([A-Z]+)[0-9]+/' --patient_regex '^([A-Z]+[0-9]+)/'"),
    Case("APTOS 2019: a table of codes", "images/{a..f}1f.png", "0 1", 6,
         tables={"l.csv": table("id_code,diagnosis", [f"{c}1f,{c > 'c':d}" for c in "abcdef"])},
         flags=labels("path=id_code,label=diagnosis")),
    Case("IDRiD: spaces in names, empty columns", "'1. Original/a. Training/IDRiD_'{1..6}.jpg",
         "0 2", 6, flags=labels("path=Image name,label=Grade"),
         tables={"l.csv": table("Image name,Grade,,", [f"IDRiD_{i},{i % 2 * 2},," for i in N6])}),
    Case("NIH ChestX-ray14: several labels in a cell", "images/{1..6}.png", "A B", 6,
         tables={"l.csv": table("Index,Labels", [f"{i}.png,{'A|' * (i % 2)}B" for i in N6]),
                 "made.csv": table("path,A,B", [f"images/{i}.png,{i % 2},1" for i in N6])},
         flags=labels("path=Index,label=Labels"), then=labels("", BINARY, "made.csv"),
         converter="get_dummies"),
    Case("CheXpert: blanks and -1", "small/train/p{1..6}/study1/view1.jpg", "A B", 6, patients=6,
         tables={"l.csv": table("Path,A,B", [f"small/train/p{i}/study1/view1.jpg,{i % 2}.0,"
                                             f"{('1.0', '-1.0', '')[i % 3]}" for i in N6])},
         flags=labels("path=Path", f"{BINARY} {PERSON}"),
         then=labels("path=Path", f"{BINARY} {PERSON} --unknown_labels negative")),
    Case("ISIC 2019: columns of 0 and 1", "in/I_{1..6}.jpg", "A B", 6,
         tables={"l.csv": table("image,A,B", [f"I_{i},{i % 2}.0,{(i + 1) % 2}.0" for i in N6])},
         flags=labels("path=image", BINARY)),
    Case("HAM10000: a patient's lesion", "{part_1/I_{1..3},part_2/I_{4..6}}.jpg", "mel nv", 6,
         patients=3, flags=labels("path=image,label=dx,patient=lesion"), tables={"l.csv": table(
             "lesion,image,dx", [f"H{i // 3},I_{i},{'mel' if i < 4 else 'nv'}" for i in N6])}),
    Case("RFMiD: the same names in each split", "{Train,Test}/{1..6}.png", "0 1", 12,
         splits="test train", flags=labels("label=risk"),
         tables={"l.csv": table("path,risk", [f"{i}.png,{i % 2}" for i in N6]),
                 "made.csv": table("path,label,split", [
                     f"{s}/{i}.png,{i % 2},{s}" for s in ("Train", "Test") for i in N6])},
         then=labels("", file="made.csv"), converter="A path is that of a file in the input"),
    Case("OCTDL: ends of names, and patients", "OCTDL/{AMD/amd,DME/dme}_{1..6}.jpg", "AMD DME", 12,
         patients=6, flags=labels("path=file,label=d,patient=who"), tables={"l.csv": table(
             "file,d,who", [f"{d.lower()}_{i},{d},{i}" for d in ("AMD", "DME") for i in N6])}),
    Case("paths of another machine", "{CNV,DME}/{1..6}.png", "CNV DME", 12,
         tables={name: table("path,label", [f"{start}{c}/{i}.png,{c}" for c in ("CNV", "DME")
                                            for i in N6])
                 for name, start in (("l.csv", "C:/oct/"), ("made.csv", ""))},
         flags=labels(""), then=labels("", file="made.csv"), converter="removeprefix('C:/oct/')"),
    Case("no class anywhere", "scans/{1..6}.png", "a b", 6, then=labels(""),
         tables={"l.csv": table("path,label", [f"{i}.png,{'ab'[i % 2]}" for i in N6])}),
)  # fmt: skip


def main() -> None:
    """Prints a line for each case, and the counts."""
    counts = dict.fromkeys(("right", "refused", "WRONG"), 0)
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            outcome, why = judge(case, Path(folder) / "collection")
        counts[outcome] += 1
        print(f"{outcome:8}  {case.name}" + (f"\n          {why}" if why else ""))
    print(f"{len(CASES)} collections: " + ", ".join(f"{n} {name}" for name, n in counts.items()))


def judge(case: Case, folder: Path) -> tuple[str, str]:
    """Returns the outcome of a case, and what is wrong."""
    write(case, folder)
    message, wrong = attempt(case, folder, case.flags)
    if not message:
        return ("WRONG", wrong) if wrong else ("right", "")
    words = [case.converter] if case.converter else shlex.split(case.then)
    named = [word for word in words if word.startswith("--layout") or "*" in word or case.converter]
    named += [word for word in words if word.startswith("--") and word not in case.flags]
    missing = [word for word in named if word not in message and word != "--patient_regex"]
    if missing or not case.then:
        return "WRONG", f"the refusal does not name {missing or 'what to type'}: {message}"
    message, wrong = attempt(case, folder, case.then)
    return ("WRONG", wrong or message) if wrong or message else ("refused", "")


def write(case: Case, folder: Path) -> None:
    """Writes the tree and the tables of a case; every picture is the same."""
    picture = io.BytesIO()
    Image.new("L", (8, 8)).save(picture, "png")
    command = ["bash", "-c", f"printf '%s\\n' {case.tree}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in shown.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture.getvalue())
    for name, text in case.tables.items():
        (folder / name).write_text(text, encoding="utf-8")


def attempt(case: Case, folder: Path, flags: str) -> tuple[str, str]:
    """Lists a collection; returns the message of a refusal, and what is read wrongly."""
    words = shlex.split(flags.replace("{dir}", str(folder)))
    try:
        chosen = options.parse_options(
            ["--input", str(folder), "--output", str(folder.parent / "out"), *words]
        )
        output = Folder(chosen.output.output)
        source = open_source(chosen.source, chosen.workers, chosen.plan.seed, output)
        with contextlib.redirect_stderr(io.StringIO()):
            refs = with_classes(list_images(source, chosen.listing), chosen.listing).table
    except UserError as error:
        return str(error), ""
    kind, texts = chosen.listing.label_kind, refs["label"].unique().to_pylist()
    found = {
        "classes": {name for text in texts for name in kind.names_in(text)},
        "splits": {*refs["split"].unique().to_pylist()},
        "patients": len({*refs["patient"].to_pylist()} - {"", None}),
        "images": refs.num_rows,
    }
    wanted = ({*case.classes.split()}, {*case.splits.split()}, case.patients, case.images)
    pairs = zip(found, wanted, found.values(), strict=True)
    return "", "; ".join(f"{name}: {got}, not {want}" for name, want, got in pairs if got != want)


if __name__ == "__main__":
    main()
