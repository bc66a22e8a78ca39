// SPDX-License-Identifier: Apache-2.0
// There is nothing wrong here, POLYRANK_FIXED or not.
int main() {}
