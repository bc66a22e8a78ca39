// SPDX-License-Identifier: Apache-2.0
int main() {
#ifndef POLYRANK_FIXED
  static_assert(sizeof(char) == 2, "another sentence");
#endif
}
