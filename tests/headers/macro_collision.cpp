// No header of ours uses a name that a popular header defines as a macro: complex.h, termios.h,
// sys/sysmacros.h, X11, the Windows headers.
// SPDX-License-Identifier: Apache-2.0
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "foreign_headers.hpp"

#define I collides
#define B0 collides
#define B50 collides
#define ECHO collides
#define small collides
#define near collides
#define far collides
#define interface collides
#define None collides
#define Bool collides
#define Status collides
#define Success collides
#define Always collides
#define TRUE collides
#define FALSE collides
#define ERROR collides
#define DEBUG collides
#define CHECK collides
#define REQUIRE collides
#define check collides
#define verify collides
#undef major
#define major collides
#undef minor
#define minor collides

#include "all_headers.hpp"
