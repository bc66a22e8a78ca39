// SPDX-License-Identifier: Apache-2.0
#include "gpu_part.hpp"

#include "json.hpp"

#include <polyrank/probe/judge_ranks.hpp>
#include <polyrank/probe/pcie_load.hpp>
#include <polyrank/probe/rank_bandwidth.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace polyrank::examples {

using namespace probe;
using polyrank::detail::cat;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

std::string gb_text(double bytes_per_s) { return cat(std::round(bytes_per_s / 1e8) / 10, " GB/s"); }

/// "54.2" or "54.2 to 55.1".
std::string range_text(std::vector<double> values, double unit) {
  if (values.empty()) return "-";
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto tenths = [&](double v) { return std::round(v / unit * 10) / 10; };
  return tenths(*least) == tenths(*most) ? cat(tenths(*least))
                                         : cat(tenths(*least), " to ", tenths(*most));
}

/// The state of a link by its answer; text for people.
void set_state(gpu_link& l, const gpu_answer& a) {
  l.how = a.hung()                      ? gpu_link::state::hung
          : !a.good()                   ? gpu_link::state::failed
          : a.word("data") == "changed" ? gpu_link::state::corrupt
                                        : gpu_link::state::ok;
  l.text = a.good() ? "" : a.complaint();
}

} // namespace

gpu_part::answers gpu_part::ask(const std::string& step, const std::string& question,
                                const std::function<void(gpu_answer&)>& ask_me) {
  watch_.enter(step, 2 * o_.deadline);
  gpu_answer mine;
  if (ask_me)
    ask_me(mine);
  else if (!question.empty())
    mine = worker_.ask(question, o_.deadline);
  answers all;
  for (const std::string& words : comm_.control().all_gather(encode(mine)))
    all.push_back(decode_answer(words));
  return all;
}

void gpu_part::learn(answers all) {
  facts_ = std::move(all);
  places_.assign(ranks(), {});
  why_not_.clear();
  std::set<std::tuple<std::string, std::size_t>> taken;
  std::map<std::size_t, cuda_facts> of_host;
  std::vector<cuda_facts> known(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) {
    const rank_facts& f = report_.ranks[r];
    if (facts_[r].how == gpu_answer::outcome::not_asked) {
      why_not_ = "built without CUDA (no polyrank_probe_gpu)";
      return;
    }
    if (facts_[r].good()) known[r] = read_cuda_facts(facts_[r]);
    if (known[r].devices.empty()) {
      if (why_not_.empty())
        why_not_ = cat("rank ", r, " on ", f.host, " has no GPU that CUDA can use");
      continue;
    }
    place& p = places_[r];
    p.device = f.local_rank % static_cast<int>(known[r].devices.size());
    const cuda_device& d = known[r].devices[static_cast<std::size_t>(p.device)];
    for (std::size_t h = 0; h < report_.machines.size(); ++h) {
      if (report_.machines[h].host != f.host) continue;
      p.machine = h;
      // The ranks of a host may see different GPUs: what any of them sees is usable.
      cuda_facts& together = of_host[h];
      if (known[r].devices.size() > together.devices.size()) together = known[r];
    }
    if (!taken
             .insert({f.boot_id, d.address.domain * std::size_t{1} << 32 | d.address.bus << 8 |
                                     d.address.device})
             .second)
      shared_ = true;
  }
  for (const auto& [h, f] : of_host) add_cuda_facts(report_.machines[h], f);
  for (std::size_t r = 0; r < ranks(); ++r) {
    if (known[r].devices.empty()) continue;
    const auto& gpus = report_.machines[places_[r].machine].gpus;
    const auto& address = known[r].devices[static_cast<std::size_t>(places_[r].device)].address;
    for (std::size_t g = 0; g < gpus.size(); ++g)
      if (gpus[g].address == address) places_[r].gpu = g;
  }
}

std::vector<finding> gpu_part::cuda_findings() const {
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<int>> grouped;
  for (std::size_t r = 0; r < facts_.size(); ++r) {
    const rank_facts& f = report_.ranks[r];
    for (const finding& one : judge_cuda(facts_[r], !f.gpu_uuid.empty(), f.host))
      grouped[{one.host, one.code, one.evidence}].push_back(f.rank);
  }
  std::vector<finding> out;
  for (const auto& [key, who] : grouped) {
    const auto& [host, code, evidence] = key;
    out.push_back({code, cat(probe::detail::ranks_text(who), ": ", evidence),
                   who.size() == 1 ? who[0] : -1, host});
  }
  return out;
}

/// Findings of ranks whose worker was asked and did not answer well.
gpu_part::result gpu_part::judge(const answers& all, const char* hung, const char* failed) const {
  result out;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const gpu_answer& a = all[r];
    if (a.good() || a.how == gpu_answer::outcome::not_asked) continue;
    out.findings.push_back({a.hung() ? hung : failed, cat("rank ", r, ": ", a.complaint()),
                            static_cast<int>(r), report_.ranks[r].host});
  }
  return out;
}

gpu_part::result gpu_part::code() {
  const answers all = ask("a kernel of this program", "code " + device_word());
  result out = judge(all, "gpu_test_hung", "gpu_test_failed");
  for (finding& f : out.findings) {
    // No image for the device, invalid or unsupported PTX, no compiler for it.
    const int code = all[static_cast<std::size_t>(f.rank)].code;
    if (code == 209 || code == 218 || code == 222 || code == 223) {
      const gpu& g = report_.machines[places_[static_cast<std::size_t>(f.rank)].machine]
                         .gpus[places_[static_cast<std::size_t>(f.rank)].gpu];
      f.code = "no_code";
      f.evidence += cat(" (", g.model, ", compute capability ", g.sm.value_or(0) / 10, '.',
                        g.sm.value_or(0) % 10, ')');
    }
  }
  return out;
}

gpu_part::result gpu_part::peers() {
  report mine; // travels to the other ranks as JSON
  std::size_t most = 0;
  for (const gpu_answer& a : facts_) most = std::max(most, read_cuda_facts(a).devices.size());
  watch_.enter("copies between the GPUs of a host",
               o_.deadline * static_cast<int>(2 + most * (most - 1)));
  const cuda_facts known = read_cuda_facts(facts_[me()]);
  const machine& m = report_.machines[places_[me()].machine];
  const auto index = [&](std::size_t device) {
    std::size_t g = 0;
    while (g < m.gpus.size() && m.gpus[g].address != known.devices[device].address) ++g;
    return g;
  };
  int hangs = 0;
  for (std::size_t i = 0; local_rank_ == 0 && i < known.devices.size(); ++i)
    for (std::size_t j = i + 1; j < known.devices.size() && hangs < 3; ++j) {
      const std::size_t a = index(i), b = index(j);
      if (a >= m.gpus.size() || b >= m.gpus.size()) continue;
      bool suspect = o_.thorough; // whether the way by the host is of interest
      for (const transfer_kind kind : {transfer_kind::peer, transfer_kind::by_host}) {
        const bool direct = kind == transfer_kind::peer;
        if (!direct && !suspect) continue;
        const gpu_answer answer = worker_.ask(
            cat("peer ", i, ' ', j, ' ', 64 * mib, direct ? " direct" : " host"), o_.deadline);
        if (direct && answer.word("access") == "0") continue;
        gpu_link l;
        l.kind = kind;
        l.host = m.host;
        l.a = m.gpus[a].name;
        l.b = m.gpus[b].name;
        set_state(l, answer);
        l.seconds = answer.number("latency");
        l.bytes_per_s = answer.number("bandwidth");
        if (direct) expect_pair(l, m, a, b);
        hangs += answer.hung() ? 1 : 0;
        suspect = suspect || l.how != gpu_link::state::ok;
        mine.gpu_links.push_back(std::move(l));
      }
    }
  std::vector<gpu_link> links;
  for (const std::string& words : comm_.control().all_gather(report_json(mine)))
    for (gpu_link& l : read_report_json(words, "links of a host").gpu_links)
      links.push_back(std::move(l));
  result out;
  out.findings = judge_gpu_links(links);
  std::vector<double> rates;
  for (const gpu_link& l : links) {
    if (l.kind == transfer_kind::peer) {
      if (l.bytes_per_s > 0) rates.push_back(l.bytes_per_s);
      continue;
    }
    // Whether the way around works is what somebody with a broken direct way wants to know.
    for (finding& f : out.findings)
      if (l.how == gpu_link::state::ok && f.evidence.starts_with(cat(l.a, " - ", l.b, " (peer")) &&
          f.host == l.host && f.kind().exit == 21)
        f.evidence += "; through host memory the data arrive";
  }
  out.text = links.empty()   ? "one GPU a host"
             : rates.empty() ? "no direct access"
                             : cat(rates.size(), " pairs, ", range_text(rates, 1e9), " GB/s");
  report_.gpu_links.insert(report_.gpu_links.end(), links.begin(), links.end());
  return out;
}

gpu_part::result gpu_part::host_device() {
  result out;
  std::vector<double> to, from;
  int most = 0;
  for (const rank_facts& f : report_.ranks) most = std::max(most, f.local_rank);
  std::vector<gpu_link> links;
  std::set<std::pair<std::size_t, std::size_t>> done; // GPUs
  for (int turn = 0; turn <= most; ++turn) {          // one GPU of each host at a time
    // With shared GPUs only the first of the ranks on one.
    const auto first_there = [&](std::size_t r) {
      for (std::size_t q = 0; q < r; ++q)
        if (places_[q].machine == places_[r].machine && places_[q].gpu == places_[r].gpu)
          return false;
      return true;
    };
    const bool asked = local_rank_ == turn && first_there(me());
    const answers all = ask("copies between host and GPU", "", [&](gpu_answer& a) {
      if (!asked) return;
      const machine& m = report_.machines[places_[me()].machine];
      pcie_load under_load(o_.nvml_library, m.gpus[places_[me()].gpu].address);
      a = worker_.ask(cat("host_device ", device_word(), ' ', 256 * mib), o_.deadline,
                      [&] { under_load.look(); });
      if (a.good() && under_load.most().known()) {
        a.values["pcie_generation"] = cat(under_load.most().generation);
        a.values["pcie_width"] = cat(under_load.most().width);
      }
    });
    for (std::size_t r = 0; r < all.size(); ++r) {
      const gpu_answer& a = all[r];
      if (a.how == gpu_answer::outcome::not_asked) continue;
      machine& m = report_.machines[places_[r].machine];
      gpu& g = m.gpus[places_[r].gpu];
      const pcie_link loaded{static_cast<int>(a.number("pcie_generation")),
                             static_cast<int>(a.number("pcie_width"))};
      if (loaded.known()) {
        g.pcie_loaded = {loaded, source::nvml};
        const pcie_link best = g.pcie_max.value_or({});
        if (best.known() && loaded.generation < best.generation)
          out.findings.push_back({"pcie_downtrained",
                                  cat(g.name, ": runs ", pcie_text(loaded),
                                      " while data is copied, can do ", pcie_text(best)),
                                  -1, m.host});
      }
      gpu_link l;
      l.host = m.host;
      l.a = g.name;
      l.route = pcie_text(g.pcie_max.value_or({}));
      set_state(l, a);
      l.seconds = a.number("latency");
      for (const auto& [kind, name] : {std::pair(transfer_kind::to_device, "to_device"),
                                       std::pair(transfer_kind::from_device, "from_device"),
                                       std::pair(transfer_kind::both_ways, "both_ways")}) {
        l.kind = kind;
        l.bytes_per_s = a.number(name);
        l.usual = kind == transfer_kind::both_ways ? 0 : usual_pcie(g.pcie_max.value_or({}));
        links.push_back(l);
        if (l.how != gpu_link::state::ok) break; // said once
      }
      if (a.good()) to.push_back(a.number("to_device")), from.push_back(a.number("from_device"));
    }
  }
  for (finding& f : judge_gpu_links(links)) out.findings.push_back(std::move(f));
  out.text = cat(range_text(to, 1e9), " GB/s to, ", range_text(from, 1e9), " GB/s from the GPU");
  report_.gpu_links.insert(report_.gpu_links.end(), links.begin(), links.end());
  return out;
}

gpu_part::result gpu_part::small_win() {
  const answers all = ask("a small model on the GPU", "small_win " + device_word());
  result out = judge(all, "gpu_test_hung", "gpu_test_failed");
  double worst = 0, loss = 0, least = -1;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const gpu_answer& a = all[r];
    if (!a.good()) continue;
    worst = std::max(worst, a.number("worst"));
    loss = a.number("loss");
    const double before = a.number("free_before"), after = a.number("free_after");
    least = least < 0 ? after : std::min(least, after);
    const auto found = [&](const char* code, const std::string& evidence) {
      out.findings.push_back(
          {code, cat("rank ", r, ": ", evidence), static_cast<int>(r), report_.ranks[r].host});
    };
    if (!(a.number("worst") < 1e-3)) // fp32 against double; NaN fails too
      found("small_win_wrong",
            cat("loss ", a.number("loss"), ", on the host ", a.number("loss_on_host"),
                "; the worst relative error is ", a.number("worst")));
    if (!shared_ && before - after > 64.0 * mib)
      found("memory_kept", cat(std::round((before - after) / mib), " MiB"));
  }
  out.text =
      cat("loss ", std::round(loss * 1e4) / 1e4, ", gradients within ",
          std::round(worst * 1e9) / 1e9, " of the host's; ",
          gib_text(static_cast<std::int64_t>(std::max(least, 0.0))), " free before and after");
  return out;
}

gpu_part::result gpu_part::gemm() {
  if (shared_) return {{}, "not timed: ranks share a GPU"};
  const answers all = ask("matrix products on the GPU", "gemm " + device_word());
  result out = judge(all, "gpu_test_hung", "gpu_test_failed");
  std::map<std::string, std::vector<double>> of_model;
  std::vector<double> every;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].good()) {
      every.push_back(all[r].number("flops"));
      of_model[report_.ranks[r].gpu_model].push_back(every.back());
    }
  for (std::size_t r = 0; r < all.size(); ++r) {
    const double usual = probe::detail::median(of_model[report_.ranks[r].gpu_model]);
    if (all[r].good() && all[r].number("flops") < 0.9 * usual)
      out.findings.push_back({"gemm_slow",
                              cat("rank ", r, ": ", std::round(all[r].number("flops") / 1e12),
                                  " TFLOP/s, its peers ", std::round(usual / 1e12), " TFLOP/s"),
                              static_cast<int>(r), report_.ranks[r].host});
  }
  out.text = cat(range_text(every, 1e12), " TFLOP/s ", all[0].word("type"));
  return out;
}

gpu_part::answers gpu_part::join(const std::vector<int>& colours) {
  std::map<int, std::vector<std::size_t>> groups;
  for (std::size_t r = 0; r < ranks(); ++r)
    if (colours[r] >= 0) groups[colours[r]].push_back(r);
  const int mine = colours[me()];
  const bool leads = mine >= 0 && groups[mine][0] == me();
  answers all = ask("an NCCL id", leads ? "nccl_id " + device_word() : "");
  std::string question;
  if (mine >= 0 && all[groups[mine][0]].good()) {
    const auto& group = groups[mine];
    question = cat("join ", device_word(), ' ',
                   std::find(group.begin(), group.end(), me()) - group.begin(), ' ', group.size(),
                   ' ', all[group[0]].word("id"));
  }
  answers joined = ask("NCCL init", question);
  for (auto& [colour, group] : groups)
    if (!all[group[0]].good()) joined[group[0]] = all[group[0]];
  end_groups(colours, joined);
  return joined;
}

void gpu_part::end_groups(const std::vector<int>& colours, const answers& all) {
  for (std::size_t r = 0; r < ranks(); ++r)
    if (colours[r] >= 0 && colours[r] == colours[me()] && !all[r].good()) worker_.restart();
}

gpu_part::result gpu_part::group(const std::vector<int>& colours) {
  answers all = join(colours);
  result out = judge(all, "nccl_hung", "nccl_failed");
  const auto joined = [&](std::size_t r) {
    for (std::size_t q = 0; q < ranks(); ++q)
      if (colours[q] == colours[r] && !all[q].good()) return false;
    return colours[r] >= 0;
  };
  all = ask("an all-reduce over NCCL",
            joined(me()) ? cat("collective all_reduce ", 4 * mib, " 0") : "");
  for (finding& f : judge(all, "nccl_hung", "nccl_failed").findings)
    out.findings.push_back(std::move(f));
  for (std::size_t r = 0; r < ranks(); ++r)
    if (all[r].word("data") == "changed")
      out.findings.push_back({"p2p_corrupt", cat("rank ", r, ": wrong sums of an all-reduce"),
                              static_cast<int>(r), report_.ranks[r].host});
  end_groups(colours, all);
  static_cast<void>(ask("leaving NCCL", joined(me()) && all[me()].good() ? "leave" : ""));
  int most = 0;
  for (const int c : colours)
    most = std::max<int>(
        most, c < 0 ? 0 : static_cast<int>(std::count(colours.begin(), colours.end(), c)));
  out.text = cat("all_reduce with ", most, most == 1 ? " GPU" : shared_ ? " ranks" : " GPUs");
  return out;
}

gpu_part::result gpu_part::connect() { return group(std::vector<int>(ranks(), 0)); }

gpu_part::result gpu_part::pairs() {
  result out;
  report_.costs = {}; // of MPI; with GPUs it is NCCL that counts
  std::vector<gpu_link> links;
  auto rounds = pair_rounds(comm_.size());
  if (ranks() > 32) { // neighbours in a ring instead of every pair
    rounds.assign(3, {});
    for (int r = 0; r < comm_.size(); ++r) {
      const int next = (r + 1) % comm_.size();
      rounds[next == 0 ? 2 : static_cast<std::size_t>(r % 2)].emplace_back(std::min(r, next),
                                                                           std::max(r, next));
    }
  }
  for (const auto& round : rounds) {
    std::vector<int> colours(ranks(), -1);
    for (std::size_t i = 0; i < round.size(); ++i)
      colours[static_cast<std::size_t>(round[i].first)] =
          colours[static_cast<std::size_t>(round[i].second)] = static_cast<int>(i);
    const answers joined = join(colours);
    const auto both = [&](const answers& all, int c) {
      const auto& [a, b] = round[static_cast<std::size_t>(c)];
      return all[static_cast<std::size_t>(a)].good() && all[static_cast<std::size_t>(b)].good();
    };
    const int mine = colours[me()];
    const bool in = mine >= 0 && both(joined, mine);
    const answers all = ask("data between two ranks over NCCL",
                            in ? cat("swap ", 64 * mib, shared_ ? " 0" : " 1") : "");
    end_groups(colours, all);
    static_cast<void>(ask("leaving NCCL", in && both(all, mine) ? "leave" : ""));
    for (std::size_t i = 0; i < round.size(); ++i) {
      const auto a = static_cast<std::size_t>(round[i].first),
                 b = static_cast<std::size_t>(round[i].second);
      gpu_link l;
      l.kind = transfer_kind::nccl;
      l.host = report_.ranks[a].host;
      l.a = cat("rank ", a);
      l.b = cat("rank ", b);
      const machine& m = report_.machines[places_[a].machine];
      if (places_[a].machine != places_[b].machine) {
        l.route = "network";
        for (const std::size_t n : nearest_nics(m, places_[a].gpu))
          for (const net_port& p : m.nics[n].ports)
            l.usual = std::max(l.usual, 0.9 * static_cast<double>(p.mbit_s) * 1e6 / 8);
      } else if (places_[a].gpu == places_[b].gpu) {
        l.route = "one GPU";
      } else {
        expect_pair(l, m, places_[a].gpu, places_[b].gpu);
        if (m.pair(places_[a].gpu, places_[b].gpu).nccl.value_or("") != "P2P") l.usual = 0;
      }
      l.may_be_slow = true; // NCCL gives one pair only some of its channels
      const gpu_answer& worse = !joined[a].good()                                    ? joined[a]
                                : !joined[b].good()                                  ? joined[b]
                                : !all[a].good()                                     ? all[a]
                                : !all[b].good() || all[b].word("data") == "changed" ? all[b]
                                                                                     : all[a];
      set_state(l, worse);
      l.seconds = worse.number("latency");
      l.bytes_per_s = worse.number("bandwidth");
      links.push_back(std::move(l));
    }
  }
  out.findings = judge_gpu_links(links);
  std::vector<double> rates;
  for (const gpu_link& l : links)
    if (l.bytes_per_s > 0) rates.push_back(l.bytes_per_s);
  out.text = cat(links.size(), links.size() == 1 ? " pair, " : " pairs, ",
                 rates.empty() ? "not timed" : cat(range_text(rates, 1e9), " GB/s"));
  report_.gpu_links.insert(report_.gpu_links.end(), links.begin(), links.end());
  // The pipeline sends between two ranks: links within a host and between hosts.
  for (const bool network : {false, true}) {
    std::vector<double> alpha, beta;
    for (const gpu_link& l : links)
      if (l.bytes_per_s > 0 && (l.route == "network") == network) {
        alpha.push_back(l.seconds);
        beta.push_back(l.bytes_per_s);
      }
    if (alpha.empty()) continue;
    const cost_model fit{probe::detail::median(alpha), probe::detail::median(beta)};
    (network ? report_.costs.between : report_.costs.inside) = fit;
  }
  return out;
}

gpu_part::result gpu_part::collectives() {
  const std::vector<int> all_ranks(ranks(), 0);
  answers all = join(all_ranks);
  result out = judge(all, "nccl_hung", "nccl_failed");
  const auto good = [&] {
    return std::all_of(all.begin(), all.end(), [](const gpu_answer& a) { return a.good(); });
  };
  struct test {
    const char* name;
    std::size_t bytes;
    int repeat;
  };
  std::vector<test> tests;
  for (const std::size_t bytes : {std::size_t{1} << 10, std::size_t{64} << 10, mib, 16 * mib})
    tests.push_back({"all_reduce", bytes, bytes < mib ? 50 : 10});
  for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"})
    tests.push_back({name, 128 * mib, 5});
  for (const test& t : tests) {
    if (!good()) break;
    if (shared_ && t.bytes > mib && t.bytes < 128 * mib) continue; // each at one size is enough
    const std::size_t bytes = shared_ ? std::min(t.bytes, 4 * mib) : t.bytes;
    all = ask(cat(t.name, " over NCCL"),
              cat("collective ", t.name, ' ', bytes, ' ', shared_ || ranks() == 1 ? 0 : t.repeat));
    for (finding& f : judge(all, "nccl_hung", "nccl_failed").findings)
      out.findings.push_back(std::move(f));
    if (!good()) break;
    collective_rate c;
    c.name = t.name;
    c.ranks = comm_.size();
    c.bytes = static_cast<std::size_t>(all[0].number("bytes"));
    for (std::size_t r = 0; r < ranks(); ++r) {
      c.seconds = std::max(c.seconds, all[r].number("seconds"));
      if (all[r].word("data") != "changed") continue;
      c.data_ok = false;
      out.findings.push_back({"p2p_corrupt", cat("rank ", r, ": wrong result of ", t.name),
                              static_cast<int>(r), report_.ranks[r].host});
    }
    report_.collectives.push_back(std::move(c));
  }
  static_cast<void>(ask("leaving NCCL", good() ? "leave" : ""));
  if (!good()) worker_.restart();
  if (const auto ring = fit_ring(report_.collectives)) report_.costs.ring = ring;
  double best = 0;
  for (const collective_rate& c : report_.collectives)
    if (c.name == "all_reduce") best = std::max(best, c.busbw());
  out.text = ranks() == 1 ? "one rank: verified, not timed"
             : best > 0   ? cat("all_reduce busbw ", gb_text(best))
                          : "verified, not timed: ranks share a GPU";
  return out;
}

} // namespace polyrank::examples
