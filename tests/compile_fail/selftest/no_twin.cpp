// SPDX-License-Identifier: Apache-2.0
static_assert(sizeof(char) == 2, "the sentence");
