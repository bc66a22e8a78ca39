// Where an operation runs: the stream it is enqueued on, a tag for people, and the place of the
// call.
//
//     comm.all_reduce(in, out, reduce_op::sum, on(stream, "bucket 7"));
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/call_site.hpp>

#include <string_view>

namespace polyrank {

/// Last argument of every communication call. The tag is copied when the call is made.
template <class Stream>
struct on {
  constexpr explicit on(Stream& the_stream, std::string_view the_tag = {},
                        call_site the_site = call_site::here()) noexcept
      : stream(the_stream), tag(the_tag), site(the_site) {}

  Stream& stream;
  std::string_view tag;
  call_site site;
};

} // namespace polyrank
