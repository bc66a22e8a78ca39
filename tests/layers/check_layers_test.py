"""check_layers.py on small trees: each breach is found, a clean tree passes."""
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check_layers.py"
HOUSE = "## The house\n  core/   layer 1: std only\n  backend/ hang/  layer 2\n  host/ cuda/  layer 3\n"
HEAD = "// Purpose.\n// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
CLEAN = {
    "core/a.hpp": HEAD + "#include <vector>\n",
    "core/b.hpp": HEAD + "#include <polyrank/core/a.hpp>\n",
    "hang/c.hpp": HEAD + "#include <polyrank/core/b.hpp>  // not <polyrank/host/d.hpp>\n",
    "host/mpi_include.hpp": HEAD + "#include <mpi.h>\n",
    "host/d.hpp": HEAD + "#include <polyrank/hang/c.hpp>\n// f<<<1, 1>>>() is not code here\n",
    "cuda/ops.hpp": HEAD + "#include <cuda_runtime_api.h>\n",
    "cuda/ops.cuh": HEAD + "#include <polyrank/cuda/ops.hpp>\n__global__ void k();\n",
    "polyrank.hpp": HEAD + "#include <polyrank/host/d.hpp>\n",
    "cuda.cuh": HEAD + "#include <polyrank/cuda/ops.cuh>\n",
}


def check(changes):
    """(exit code, output) for the clean tree with these headers on top."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "CONTRIBUTING.md").write_text(HOUSE)
        for name, text in (CLEAN | changes).items():
            path = root / "include/polyrank" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
        return run.returncode, run.stdout


class CheckLayers(unittest.TestCase):
    def breach(self, name, body, expected, head=HEAD):
        code, output = check({name: head + body})
        self.assertEqual(code, 1, output)
        self.assertIn(f"include/polyrank/{name}:", output)
        self.assertIn(expected, output)
        self.assertEqual(len(output.splitlines()), 1, output)

    def test_clean_tree_passes(self):
        self.assertEqual(check({}), (0, ""))

    def test_upward_include(self):
        self.breach("core/x.hpp", "#include <polyrank/hang/c.hpp>\n", "layer 2 from layer 1")

    def test_sideways_include(self):
        self.breach("backend/x.hpp", "#include <polyrank/hang/c.hpp>\n", "layer 2 from layer 2")

    def test_line_number(self):
        self.breach("core/x.hpp", "/* a\n b */\n  #  include <polyrank/host/d.hpp>\n", "x.hpp:6:")

    def test_relative_include(self):
        self.breach("core/x.hpp", '#include "../core/a.hpp"\n', "include as <polyrank/...>")

    def test_missing_header(self):
        self.breach("core/x.hpp", "#include <polyrank/core/gone.hpp>\n", "no such header")

    def test_unknown_folder(self):
        self.breach("misc/x.hpp", "", "folder misc/ has no layer")

    def test_umbrella_inside(self):
        self.breach("host/x.hpp", "#include <polyrank/polyrank.hpp>\n", "an umbrella is for users")

    def test_umbrella_with_cuda(self):
        self.breach("polyrank.hpp", "#include <polyrank/cuda/ops.hpp>\n", "is for host code")

    def test_cuda_header_on_the_host(self):
        self.breach("host/x.hpp", "#include <nccl.h>\n", "only cuda/ may include")

    def test_mpi_header_outside_its_home(self):
        self.breach("host/x.hpp", "#include <mpi.h>\n", "<polyrank/host/mpi_include.hpp>")

    def test_cuh_from_hpp(self):
        self.breach("cuda/x.hpp", "#include <polyrank/cuda/ops.cuh>\n", "only a .cuh may include")

    def test_kernel_in_hpp(self):
        self.breach("cuda/x.hpp", "__global__ void k();\n", "device code")

    def test_launch_in_hpp(self):
        self.breach("cuda/x.hpp", "inline void f() { k<<<1, 1>>>(); }\n", "device code")

    def test_iostream(self):
        self.breach("core/x.hpp", "#include <iostream>\n", "headers do not print")

    def test_too_long(self):
        self.breach("core/x.hpp", "\n" * 600, "603 lines, the cap is 600")

    def test_no_licence(self):
        self.breach("core/x.hpp", "", "SPDX", head="#pragma once\n")

    def test_no_pragma_once(self):
        self.breach("core/x.hpp", "", "pragma once", head="// SPDX-License-Identifier: Apache-2.0\n")

    def test_usage(self):
        for arguments, code in ((["--help"], 0), (["--nonsense"], 2), (["/nowhere"], 2)):
            run = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True)
            self.assertEqual(run.returncode, code)


if __name__ == "__main__":
    unittest.main()
