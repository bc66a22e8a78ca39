// main() of the tests under mpirun.
// SPDX-License-Identifier: Apache-2.0
int main() { return 0; }
