"""check_docs.py on small pages: a command that fails, a dead link and bad C++ are found."""
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check_docs.py"


def check(text, *options):
    """(exit code, output) for a page with this text; `build/` holds one file, built."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.md"
        page.write_text(text)
        build = Path(folder) / "out"
        build.mkdir()
        (build / "built").touch()
        command = [sys.executable, SCRIPT, "--build", build, *options, page]
        run = subprocess.run(command, capture_output=True, text=True)
        return run.returncode, run.stdout


class CheckDocs(unittest.TestCase):
    def test_good_page(self):
        text = "[here](page.md#top) [far](https://example.org)\n```sh test\ntest -f build/built\nls CONTRIBUTING.md\n```\n"
        self.assertEqual(check(text), (0, ""))

    def test_failing_command(self):
        code, output = check("intro\n\n```sh test\necho before\nfalse\necho after\n```\n")
        self.assertEqual(code, 1)
        self.assertIn("page.md:3: exit code 1\nbefore", output)
        self.assertNotIn("after", output)

    def test_unmarked_block_is_not_run(self):
        self.assertEqual(check("```sh\nfalse\n```\n"), (0, ""))

    def test_files_a_command_writes_are_thrown_away(self):
        self.assertEqual(check("```sh test\ntouch written-by-the-docs\n```\n"), (0, ""))
        self.assertFalse((SCRIPT.parent.parent / "written-by-the-docs").exists())

    def test_dead_link(self):
        code, output = check("a\n[there](gone.md)\n")
        self.assertEqual(code, 1)
        self.assertIn("page.md:2: link to gone.md", output)

    def test_cpp_block(self):
        good, bad = "```cpp test\nint main() {}\n```\n", "```cpp test\nint main() { return x; }\n```\n"
        self.assertEqual(check(good, "--compile", "c++"), (0, ""))
        code, output = check(bad, "--compile", "c++")
        self.assertEqual(code, 1)
        self.assertIn("page.md:1: does not compile", output)

    def test_usage(self):
        for arguments, code in ((["--help"], 0), (["--nonsense"], 2), (["gone.md"], 2)):
            run = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True)
            self.assertEqual(run.returncode, code)


if __name__ == "__main__":
    unittest.main()
