"""What lies in an export beside its files, and lines of its listing that no export wrote, are told by `verify`."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from robust201.core.errors import ResultsError
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing
from tests.support.fabricated import export, make_plan


@pytest.fixture
def out(tmp_path):
    """An export that its listing agrees with."""
    export(tmp_path / "out", make_plan([0, 2], ["clean", "fgsm"], measurements=("accuracy",)))
    assert wrong_in(tmp_path / "out") == []
    return tmp_path / "out"


def wrong_in(out: Path) -> list[str]:
    return list(check_listing(out, read_listing(out)))


def link_a_listed_file(out: Path) -> None:
    file = out / "cifar10/fgsm_accuracy.json"
    file.rename(out.parent / "elsewhere.json")
    file.symlink_to(out.parent / "elsewhere.json")


def link_a_listed_folder(out: Path) -> None:
    (out / "cifar10").rename(out.parent / "elsewhere")
    (out / "cifar10").symlink_to(out.parent / "elsewhere")


BESIDE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (lambda out: os.mkfifo(out / "pipe"), "got a named pipe"),
    "a link to a file": (lambda out: (out / "link").symlink_to(out / "meta.json"), "got a symbolic link to"),
    "a link to nothing": (lambda out: (out / "link").symlink_to("nowhere"), "got a symbolic link to 'nowhere'"),
    "a link to a folder": (lambda out: (out / "link").symlink_to("/"), "got a symbolic link to '/'"),
    "a link to itself": (lambda out: (out / "link").symlink_to("link"), "got a symbolic link to 'link'"),
    "a link deep inside": (lambda out: (out / "cifar10/link").symlink_to(".."), "got a symbolic link to '..'"),
    "a link for a listed file": (link_a_listed_file, "got a symbolic link to"),
    "a link for a listed folder": (link_a_listed_folder, "got a symbolic link to"),
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_export_never_writes_is_told(out, what):
    spoil, told = BESIDE[what]
    spoil(out)
    (line,) = wrong_in(out)
    assert told in line


def test_a_listed_name_that_a_pipe_has_is_told_and_not_waited_for(out):
    (out / "cifar10/fgsm_accuracy.json").unlink()
    os.mkfifo(out / "cifar10/fgsm_accuracy.json")
    (line,) = wrong_in(out)
    assert "expected a file, got a named pipe" in line


HEX = "0" * 64
LINES = {
    "below another folder": (f"{HEX}  ../x", "'../x', which is no path below the folder"),
    "in the middle": (f"{HEX}  cifar10/../../x", "which is no path below the folder"),
    "absolute": (f"{HEX}  /etc/hostname", "'/etc/hostname', which is no path below the folder"),
    "the folder": (f"{HEX}  .", "which is no path below the folder"),
    "spelled otherwise": (f"{HEX}  ./meta.json", "'./meta.json', which is no path below the folder"),
    "short": (f"{HEX[1:]}  x", f"got '{HEX[1:]}  x'"),
    "no hexadecimal digits": (f"{HEX[1:]}g  x", "g  x'"),
    "upper case": (f"{'A' * 64}  x", "A  x'"),
    "no name": (f"{HEX}  ", f"got '{HEX}  '"),
    "one word": ("x", "got 'x'"),
    "a binary mark": (f"{HEX} *x", f"got '{HEX} *x'"),
}


@pytest.mark.parametrize("what", LINES)
def test_lines_of_another_form_are_told_with_their_number(out, what):
    line, told = LINES[what]
    listing = out / CHECKSUM_FILE
    text = listing.read_text()
    listing.write_text(f"{text}{line}\n")
    (wrong,) = wrong_in(out)
    assert f"{CHECKSUM_FILE}, line {len(text.splitlines()) + 1}: expected 64 hexadecimal digits" in wrong
    assert told in wrong


def test_a_name_that_is_listed_twice_is_told(out):
    listing = out / CHECKSUM_FILE
    first = listing.read_text().splitlines()[0]
    listing.write_text(f"{listing.read_text()}{HEX}{first[64:]}\n")
    (wrong,) = wrong_in(out)
    assert f"got {first[66:]!r} a second time" in wrong


def test_a_listing_of_rubbish_is_told_in_few_lines(out):
    (out / CHECKSUM_FILE).write_text("rubbish\n" * 1000)
    assert len(read_listing(out).wrong) == 11


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("meta.json"), None])
def test_a_listing_that_is_no_file_is_no_export(finished, tmp_path, robust201, make):
    (tmp_path / "out").mkdir()
    if make is not None:
        make(tmp_path / "out" / CHECKSUM_FILE)
    with pytest.raises(ResultsError):
        read_listing(tmp_path / "out")
    assert "expected a whole export" in robust201("verify", finished, "--export", tmp_path / "out").refusal(2)
