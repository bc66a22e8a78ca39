// The network interfaces of this host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/rank_facts.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace polyrank::probe {

/// The interfaces of this host with their first IPv4 address, else a global IPv6 one.
[[nodiscard]] inline std::vector<net_interface> list_interfaces() {
  std::vector<net_interface> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    auto found = std::find_if(out.begin(), out.end(),
                              [&](const net_interface& n) { return n.name == i->ifa_name; });
    if (found == out.end()) {
      out.push_back(
          {i->ifa_name, "", (i->ifa_flags & IFF_UP) != 0, (i->ifa_flags & IFF_LOOPBACK) != 0});
      found = out.end() - 1;
    }
    if (i->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (i->ifa_addr->sa_family == AF_INET &&
        (found->address.empty() || found->address.find(':') != std::string::npos)) {
      sockaddr_in a;
      std::memcpy(&a, i->ifa_addr, sizeof a);
      found->address = inet_ntop(AF_INET, &a.sin_addr, text, sizeof text);
    } else if (i->ifa_addr->sa_family == AF_INET6 && found->address.empty()) {
      sockaddr_in6 a;
      std::memcpy(&a, i->ifa_addr, sizeof a);
      // Link-local addresses (fe80::) mean nothing on another host.
      if (!IN6_IS_ADDR_LINKLOCAL(&a.sin6_addr))
        found->address = inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof text);
    }
  }
  freeifaddrs(list);
  return out;
}

} // namespace polyrank::probe
