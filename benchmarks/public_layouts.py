"""Lists collections laid out as public ones are, and says which are read right at the first try.

    python benchmarks/public_layouts.py

Each case is a drawn tree (braces as in bash), perhaps with a table, in the shape of a collection
that people have; the flags that a user would type first; and what the listing must find. A case is
`right`, or `refused`, if a second set of flags then reads it right, or `WRONG`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A collection; its classes and splits are names with spaces between them.

    Attributes:
        tree: paths, with braces as in bash, a line each.
        tables: the content of other files, by their paths.
        flags: what a user types first, besides --input; `{dir}` is the folder.
        then: what is typed after a refusal.
        images: how many are listed.
        patients: how many are known.
    """

    name: str
    tree: str
    classes: str
    images: int
    patients: int = 0
    splits: str = "train"
    tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: str = ""
    then: str | None = None


def table(head: str, rows: Iterable[str]) -> str:
    """Returns a CSV file."""
    return "\n".join([head, *rows]) + "\n"


N6 = range(1, 7)
DUKE = "--label_regex '^([A-Z]+)[0-9]+/' --patient_regex '^([A-Z]+[0-9]+)/'"

CASES = (
    Case(name="Kermany: chest X-rays", classes="NORMAL PNEUMONIA", splits="test train val",
         images=36, patients=6, tree="chest_xray/{train,val,test}/NORMAL/IM-{1..6}-0001.jpeg\n"
         "chest_xray/{train,val,test}/PNEUMONIA/person{1..6}_bacteria_1.jpeg"),
    Case(name="APTOS 2019: a table of codes", classes="0 1", images=12,
         tree="train_images/{a..l}1f.png",
         tables={"train.csv": table("id_code,diagnosis",
                                    [f"{c}1f,{i % 2}" for i, c in enumerate("abcdefghijkl")])},
         flags="--labels {dir}/train.csv --columns path=id_code,label=diagnosis"),
    Case(name="EyePACS: left and right", classes="0 2", images=12,
         tree="train/{1..6}_{left,right}.jpeg",
         tables={"trainLabels.csv": table("image,level", [f"{i}_{s},{0 if i < 4 else 2}" for i in N6
                                                          for s in ("left", "right")])},
         flags="--labels {dir}/trainLabels.csv --columns path=image,label=level"),
    Case(name="IDRiD: spaces in names, empty columns", classes="0 2", images=6,
         tree="'B. Disease Grading/1. Original Images/a. Training Set/IDRiD_00'{1..6}.jpg",
         tables={"labels.csv": table("Image name,Retinopathy grade,,",
                                     [f"IDRiD_00{i},{i % 2 * 2},," for i in N6])},
         flags="--labels {dir}/labels.csv --columns 'path=Image name,label=Retinopathy grade'"),
    Case(name="RFMiD: a table for each split, same names", classes="0 1", splits="test train",
         images=12, tree="Training_Set/Training/{1..6}.png\nTest_Set/Test/{1..6}.png",
         tables={f"{s}_Set/{s}_labels.csv": table("ID,Disease_Risk", [f"{i},{i % 2}" for i in N6])
                 for s in ("Training", "Test")},
         flags="--labels {dir}/Training_Set/Training_labels.csv,{dir}/Test_Set/Test_labels.csv "
               "--columns path=ID,label=Disease_Risk"),
    Case(name="NIH ChestX-ray14: several labels in a cell", classes="Effusion Mass", images=6,
         patients=6, tree="images_001/images/0000{1..6}_000.png",
         tables={"Data_Entry_2017.csv": table(
             "Image Index,Finding Labels,Patient ID",
             ["00001_000.png,Effusion|Mass,1", *(f"0000{i}_000.png,Mass,{i}" for i in (2, 3)),
              *(f"0000{i}_000.png,Effusion,{i}" for i in (4, 5, 6))])},
         flags="--labels {dir}/Data_Entry_2017.csv --columns "
               "'path=Image Index,label=Finding Labels,patient=Patient ID'",
         then="--labels {dir}/Data_Entry_2017.csv --label_separator '|' --columns "
              "'path=Image Index,label=Finding Labels,patient=Patient ID'"),
    Case(name="CheXpert: uncertain labels", classes="Edema Pneumonia", images=6, patients=6,
         tree="CheXpert-v1.0-small/train/patient0000{1..6}/study1/view1_frontal.jpg",
         tables={"train.csv": table("Path,Edema,Pneumonia", [
             f"CheXpert-v1.0-small/train/patient0000{i}/study1/view1_frontal.jpg,{i % 2}.0,"
             f"{'1.0' if i < 3 else '-1.0'}"
             for i in N6])},
         flags="--labels {dir}/train.csv --columns path=Path --label_columns Edema,Pneumonia "
               "--uncertain negative --patient_regex 'patient([0-9]+)'"),
    Case(name="MURA: studies of patients", classes="negative positive", images=24, patients=6,
         tree="MURA-v1.1/train/XR_ELBOW/patient0000{1..3}/study{1,2}_{negative,positive}/i1.png\n"
         "MURA-v1.1/train/XR_HAND/patient0000{4..6}/study1_positive/image{1..4}.png",
         then="--label_regex 'study[0-9]+_([a-z]+)/' --patient_regex '(patient[0-9]+)/'"),
    Case(name="ISIC 2019: exclusive one-hot columns", classes="MEL NV", images=6,
         tree="ISIC_2019_Training_Input/ISIC_000000{1..6}.jpg",
         tables={"truth.csv": table("image,MEL,NV", [f"ISIC_000000{i},{i % 2}.0,{(i + 1) % 2}.0"
                                                     for i in N6])},
         flags="--labels {dir}/truth.csv --columns path=image --label_columns MEL,NV --one_class"),
    Case(name="HAM10000: two folders, a patient's lesion", classes="mel nv", images=6, patients=3,
         tree="HAM10000_images_part_1/ISIC_{1..3}.jpg\nHAM10000_images_part_2/ISIC_{4..6}.jpg",
         tables={"HAM10000_metadata.csv": table(
             "lesion_id,image_id,dx,age", [f"HAM_{i // 2},ISIC_{i},{'mel' if i < 4 else 'nv'},40"
                                           for i in N6[:-1]] + ["HAM_2,ISIC_6,nv,"])},
         flags="--labels {dir}/HAM10000_metadata.csv "
               "--columns path=image_id,label=dx,patient=lesion_id"),
    Case(name="BreakHis: benign/SOB/type/slide/magnification", classes="benign malignant",
         images=24, tree="BreaKHis_v1/breast/benign/SOB/adenosis/SOB_B_A_14-2254{1..3}/"
         "{40,100}X/SOB_B_A-14-{1..2}.png\n"
         "BreaKHis_v1/breast/malignant/SOB/ductal/SOB_M_DC_14-252{1..3}/{40,100}X/SOB_M_DC-14-{1..2}.png"),
    Case(name="IDC: patients of numbers, classes 0 and 1", classes="0 1", images=48, patients=6,
         tree="1025{1..6}/{0,1}/1025_idx5_x{1..4}.png", then="--layout patient/class"),
    Case(name="Kather: a folder a class", classes="ADI BACK TUM", images=18,
         tree="NCT-CRC-HE-100K/{ADI,BACK,TUM}/X-{1..6}.tif"),
    Case(name="LC25000: classes below two organs", classes="colon_aca colon_n lung_aca lung_n",
         images=24, tree="lung_colon_image_set/lung_image_sets/lung_{aca,n}/l{1..6}.jpeg\n"
         "lung_colon_image_set/colon_image_sets/colon_{aca,n}/c{1..6}.jpeg",
         then="--layout '*/class'"),
    Case(name="Brain tumours: Training and Testing", classes="glioma notumor", splits="test train",
         images=24, tree="{Training,Testing}/{glioma,notumor}/Tr-{1..6}.jpg"),
    Case(name="COVID radiography: masks", classes="COVID Normal", images=12,
         tree="COVID-19_Radiography_Dataset/{COVID,Normal}/{images,masks}/X-{1..6}.png",
         then="--exclude_regex '(^|/)masks/'"),
    Case(name="Shenzhen: the class in the name", classes="0 1", images=12,
         tree="CXR_png/CHNCXR_000{1..6}_{0,1}.png", then="--label_regex '_([01])\\.png$'"),
    Case(name="Oxford pets: the breed in the name", classes="Abyssinian pug", images=12,
         tree="images/{Abyssinian,pug}_{1..6}.jpg\nannotations/trimaps/{Abyssinian,pug}_{1..6}.png",
         then="--label_regex '^([A-Za-z]+)_' --exclude_regex '^annotations/'"),
    Case(name="ImageNet: WordNet IDs with many images", classes="n01440764 n01443537",
         splits="train val", images=24, tree="{train,val}/n0144{0764,3537}/X_{1..6}.JPEG",
         then="--layout split/class"),
    Case(name="Roboflow: classes and copies", classes="benign malignant", splits="test train val",
         images=72, tree="{train,valid,test}/{benign,malignant}/S{1..4}_jpg.rf."
         "{0123456789abcdef01,1123456789abcdef02,2123456789abcdef03}.jpg"),
    Case(name="Roboflow: a table with spaces", classes="Lep Non_Lep", images=6,
         tree="train/S{1..6}_jpg.rf.0123456789abcdef01.jpg",
         tables={"train/_classes.csv": table(
             "filename, Lep, Non_Lep",
             [f"S{i}_jpg.rf.0123456789abcdef01.jpg, {i % 2}, {(i + 1) % 2}" for i in N6])},
         flags="--labels {dir}/train/_classes.csv --columns path=filename "
               "--label_columns Lep,Non_Lep --one_class"),
    Case(name="DRIVE: vessels and masks", classes="images", images=6,
         tree="training/{images,mask,1st_manual}/{1..6}_training.png",
         then="--exclude_regex '(^|/)(mask|1st_manual)/' --classes images"),
    Case(name="CHASE: masks beside images", classes="L R", images=12,
         tree="CHASEDB1/Image_0{1..6}{L,R}.jpg\nCHASEDB1/Image_0{1..6}{L,R}_1stHO.png",
         then="--exclude_regex '_1stHO' --label_regex '([LR])\\.jpg'"),
    Case(name="Kvasir: classes with hyphens", classes="dyed-lifted-polyps normal-cecum", images=12,
         tree="kvasir-dataset-v2/{dyed-lifted-polyps,normal-cecum}/x{1..6}.jpg"),
    Case(name="OCTDL: a table with patients", classes="AMD DME", images=12, patients=6,
         tree="OCTDL/{AMD,DME}/{amd,dme}_{1..3}.jpg",
         tables={"OCTDL_labels.csv": table("file_name,disease,patient_id", [
             f"{f}_{i},{d},{i + 3 * (d == 'DME')}" for d in ("AMD", "DME") for f in ("amd", "dme")
             for i in (1, 2, 3)])},
         flags="--labels {dir}/OCTDL_labels.csv "
               "--columns path=disease/file_name,label=disease,patient=patient_id"),
    Case(name="Duke OCT: the patient's number behind the class", classes="AMD DME NORMAL",
         images=54, patients=18, tree="{AMD,DME,NORMAL}{1..6}/TIFFs/8bitTIFFs/00{1..3}.tif",
         then=DUKE),
    Case(name="patients below classes", classes="CNV DRUSEN", images=36, patients=12,
         tree="CNV/patient_{1..6}/{1..3}.png\nDRUSEN/patient_{7..12}/{1..3}.png"),
    Case(name="patients above classes", classes="CNV NORMAL", images=40, patients=20,
         tree="P{1..10}/CNV/{1..2}.jpeg\nP{11..20}/NORMAL/{1..2}.jpeg"),
    Case(name="names of patients above classes", classes="benign malignant", images=24,
         tree="{Abel,Bode,Carl}/benign/{1..4}.png\n{Dorn,Emil,Falk}/malignant/{1..4}.png"),
    Case(name="hospitals above classes above patients", classes="CNV NORMAL", images=48,
         patients=12, tree="hosp{1,2}/CNV/pat_{1..3}/{1..4}.png\n"
         "hosp{1,2}/NORMAL/pat_{4..6}/{1..4}.png"),
    Case(name="folds", classes="benign malignant", images=60,
         tree="fold{1..5}/{benign,malignant}/{1..6}.png"),
    Case(name="Train_Data and Validation_Data", classes="a b", splits="train val", images=24,
         tree="{Train_Data,Validation_Data}/{a,b}/{1..6}.png"),
    Case(name="grades in folders of numbers", classes="0 1 2 3 4", splits="test train", images=60,
         tree="{train,test}/{0..4}/{1..6}.png"),
    Case(name="visits below classes", classes="stable worse", images=24,
         tree="{stable,worse}/visit_{1,2}/{1..6}.png"),
    Case(name="paths of another machine", classes="CNV DME", images=12, tree="{CNV,DME}/{1..6}.png",
         tables={"t.csv": table("path,label", [f"C:\\\\data\\\\oct\\\\{c}\\\\{i}.PNG,{c}".replace(
             "\\\\", "\\") for c in ("CNV", "DME") for i in N6])}, flags="--labels {dir}/t.csv"),
    Case(name="JSON lines beside images", classes="cat dog", images=6, tree="images/{1..6}.png",
         tables={"metadata.jsonl": "".join(
             json.dumps({"file_name": f"images/{i}.png", "label": ("cat", "dog")[i % 2]}) + "\n"
             for i in N6)},
         flags="--labels {dir}/metadata.jsonl --columns path=file_name"),
    Case(name="no class anywhere", classes="a b", images=6, tree="scans/{1..6}.png",
         tables={"l.csv": table("path,label", [f"{i}.png,{'ab'[i % 2]}" for i in N6])},
         then="--labels {dir}/l.csv"),
)  # fmt: skip


def main() -> None:
    """Prints a line for each case, and the counts."""
    counts = dict.fromkeys(("right", "refused", "WRONG"), 0)
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            outcome, told = judge(case, Path(folder) / "collection")
        counts[outcome] += 1
        print(f"{outcome:8}  {case.name}" + (f"\n          {told}" if told else ""))
    print(f"{len(CASES)} collections: " + ", ".join(f"{n} {name}" for name, n in counts.items()))


def judge(case: Case, folder: Path) -> tuple[str, str]:
    """Returns the outcome of a case, and what is wrong or how it was refused."""
    write(case, folder)
    try:
        found = listed(folder, case.flags)
    except UserError as error:
        refused = " ".join(str(error).split())
    else:
        wrong = difference(case, found)
        return ("WRONG", wrong) if wrong else ("right", "")
    if case.then is None:
        return "WRONG", f"refused: {refused}"
    try:
        wrong = difference(case, listed(folder, case.then))
    except UserError as error:
        wrong = f"refused again: {error}"
    return ("WRONG", wrong) if wrong else ("refused", f"{refused[:150]} …")


def write(case: Case, folder: Path) -> None:
    """Writes the tree and the tables of a case; every picture is the same."""
    picture = io.BytesIO()
    Image.new("L", (8, 8)).save(picture, "png")
    lines = case.tree.split("\n")
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(lines)}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    for number, name in enumerate(shown.stdout.splitlines()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.getvalue() + bytes([number % 256]))
    for name, text in case.tables.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def listed(folder: Path, flags: str) -> tuple[set[str], set[str], int, int]:
    """Returns the classes, the splits, the number of patients and of images of a listing."""
    words = shlex.split(flags.replace("{dir}", str(folder)))
    chosen = options.parse_options(
        ["--input", str(folder), "--output", str(folder.parent / "out"), *words]
    )
    with contextlib.redirect_stderr(io.StringIO()):
        output = Folder(chosen.output.output)
        source = open_source(chosen.source, chosen.workers, chosen.plan.seed, output)
        images = with_classes(list_images(source, chosen.listing), chosen.listing)
    refs, names = images.table, images.label_names
    kind = chosen.listing.label_kind
    classes = {name for text in refs["label"].unique().to_pylist() for name in kind.names_in(text)}
    patients = {name for name in refs["patient"].unique().to_pylist() if name}
    return classes & {*names} if names else classes, {*refs["split"].unique().to_pylist()}, len(
        patients), refs.num_rows  # fmt: skip


def difference(case: Case, found: tuple[set[str], set[str], int, int]) -> str:
    """Returns what was read otherwise than it should be; empty if nothing was."""
    wanted = ({*case.classes.split()}, {*case.splits.split()}, case.patients, case.images)
    told = ("classes", "splits", "patients", "images")
    pairs = zip(told, wanted, found, strict=True)
    return "; ".join(f"{name}: {got}, not {want}" for name, want, got in pairs if got != want)


if __name__ == "__main__":
    main()
