// polyrank_plan schedule, run as people run it: text, files, exit codes, one line per error.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <nlohmann/json.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

/// A folder that is gone when the test ends.
struct folder {
  fs::path path = fs::temp_directory_path() /
                  ("polyrank_plan_" + std::to_string(::getpid()) + "_" + std::to_string(next()++));
  folder() { fs::create_directories(path); }
  ~folder() { fs::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }

 private:
  static int& next() {
    static int number = 0;
    return number;
  }
};

std::string slurp(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
void write(const std::string& name, const std::string& text) {
  std::ofstream(name, std::ios::binary) << text;
}

struct result {
  int code;
  std::string out, err;
};

result plan(const std::string& arguments) {
  static folder place;
  const std::string out = place.file("out"), err = place.file("err");
  const int status = std::system(
      (std::string(POLYRANK_PLAN) + " " + arguments + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(out), slurp(err)};
}

/// Refused: exit code, nothing on stdout, one line on stderr that contains `what`.
void refused(const std::string& arguments, int code, const std::string& what) {
  const result r = plan(arguments);
  INFO(arguments << "\n" << r.out << r.err);
  CHECK(r.code == code);
  CHECK(r.out.empty());
  CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  CHECK(r.err.find(what) != std::string::npos);
}

} // namespace

TEST_CASE("plan: --compare prints the makespans in the contract's order", "[plan]") {
  const result r = plan("schedule --compare --stages 4 --microbatches 8 --costs 1,1,1,0 --quiet");
  CHECK(r.code == 0);
  CHECK(r.err == "");
  CHECK(r.out == "gpipe 33\n1f1b 33\ninterleaved 28.5\nbfs 28.5\nzb_h1 27\nzb_h2 27\nzb_v 25.5\n"
                 "v_half 28.5\nv_min 29.5\ndualpipe_v 27\n");
  CHECK(plan("schedule --compare --stages 4 --microbatches 8").out.find("span bubble") !=
        std::string::npos);
  // --chunks counts where a schedule takes any number: a bubble of 9 / 3.
  CHECK(plan("schedule --compare --stages 4 --microbatches 8 --chunks 3 --quiet")
            .out.find("interleaved 27\nbfs 27\n") != std::string::npos);
  // --lower simulates the lanes.
  CHECK(plan("schedule --compare --stages 4 --microbatches 8 --costs 1,1,1,0.05 --lower --quiet")
            .code == 0);
}

TEST_CASE("plan: one schedule, its picture, table, trace and numbers", "[plan]") {
  const folder here;
  const result r = plan("schedule --schedule 1f1b --stages 2 --microbatches 3 --columns 24 --csv " +
                        here.file("t.csv") + " --svg " + here.file("t.svg") + " --trace " +
                        here.file("t.json") + " --json " + here.file("r.json"));
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK(r.out.find("1f1b: 2 ranks x 1 chunk, 3 microbatches\n") == 0);
  CHECK(r.out.find("rank 0 |F0F1....B0--F2B1--..B2--|\n") != std::string::npos);
  CHECK(slurp(here.file("t.csv")) == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  CHECK(slurp(here.file("t.svg")).find("<svg ") == 0);
  CHECK(nlohmann::json::parse(slurp(here.file("t.json")))["traceEvents"].size() ==
        12 + 4 + 12 + 12);
  const auto json = nlohmann::json::parse(slurp(here.file("r.json")));
  CHECK(json["makespan"] == 12);
  CHECK(json["schedule"] == "1f1b");
  CHECK(json["ranks"].size() == 2);
  CHECK(json["ranks"][0]["peak_memory"] == 2);
  CHECK(plan("schedule --schedule 1f1b --stages 2 --microbatches 3 --quiet").out == "12\n");
  CHECK(plan("schedule --schedule 1f1b --stages 2 --microbatches 3 --costs 2,2,2,0 --quiet").out ==
        "24\n");
  CHECK(plan("schedule --schedule interleaved --stages 2 --microbatches 4 --chunks 4 --layers 16")
            .out.find("layers per stage  2\n") != std::string::npos);
  CHECK(plan("schedule --schedule zb_h1 --stages 4 --microbatches 8 --weight-memory 1")
            .out.find("peak      4\n") != std::string::npos);
  CHECK(plan("schedule --schedule forward_only --stages 4 --microbatches 8 --quiet").out == "11\n");
  CHECK(plan("schedule --schedule 1f1b --stages 100 --microbatches 100").out.find("rank 0") ==
        std::string::npos); // nobody reads 100 rows
}

TEST_CASE("plan: --lower adds communication in the table", "[plan]") {
  const folder here;
  const std::string common =
      "schedule --schedule interleaved --stages 2 --microbatches 2 --lower --csv " +
      here.file("t.csv");
  CHECK(plan(common).code == 0);
  CHECK(slurp(here.file("t.csv")).find("0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0") == 0);
  CHECK(plan(common + " --lanes per_channel").code == 0);
  const result r =
      plan("schedule --stages 2 --chunks 2 --microbatches 2 --validate " + here.file("t.csv"));
  CHECK(r.code == 0);
  CHECK(r.out.find("t.csv: valid\n") != std::string::npos);
}

TEST_CASE("plan: a table that deadlocks is named with its cycle, exit code 1", "[plan]") {
  const folder here;
  const std::string file = here.file("late.csv");
  write(file, "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,"
              "2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1\n"
              "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1,"
              "3B0,3SEND_B0,3B1,3SEND_B1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1\n");
  const std::string shape = " --stages 2 --chunks 2 --microbatches 2";
  const result r = plan("schedule --validate " + file + shape + " --json " + here.file("r.json"));
  CHECK(r.code == 1);
  CHECK(r.out ==
        file + ": deadlock: rank 0 0SEND_F1 waits for 1RECV_F1 of rank 1, which stands behind "
               "1SEND_F0; rank 1 1SEND_F0 waits for 2RECV_F0 of rank 0, which stands behind "
               "0SEND_F1\n"
               "  rank 0, action 3 (0SEND_F1)      waits for rank 1, action 3 (1RECV_F1)\n"
               "  rank 1, action 2 (1SEND_F0)      waits for rank 0, action 4 (2RECV_F0)\n");
  const auto json = nlohmann::json::parse(slurp(here.file("r.json")));
  CHECK(json["valid"] == false);
  CHECK(json["cycle"].size() == 4);
  CHECK(plan("schedule --validate " + file + " --lanes per_channel").code == 0);

  write(file, "0F0,0B0\n1F0,1B0\n"); // the shape may come from the table, and be drawn
  CHECK(plan("schedule --quiet --validate " + file).out == "6\n");
  CHECK(plan("schedule --lower --lanes per_channel --validate " + file).code == 0);
  refused("schedule --lanes single --validate " + file, 2, "has no transfers");
  write(file, "0F0\n1F0,1B0\n");
  CHECK(plan("schedule --validate " + file).out == file + ": rank 0 never runs 0B0\n");
  write(file, "0F0,0B0\n1F0,1Q0\n");
  refused("schedule --validate " + file, 1, file + ": line 2, column 6: \"Q\" is no action");
  write(file, "0F0,0B0\n0F0,1B0\n");
  refused("schedule --validate " + file, 1, "line 2, column 1: stage 0 stands on line 1 already");
  write(file, "0F0,0B0\n1F0,1B0\n");
  refused("schedule --stages 3 --validate " + file, 1, "2 lines, one per rank");
  refused("schedule --chunks 18446744073709551615 --stages 2 --validate " + file, 2,
          "more than 65535 stages");
  refused("schedule --microbatches 9000000 --validate " + file, 1, "has only 4 actions");
  refused("schedule --validate " + here.file("none.csv"), 1, "none.csv");
}

TEST_CASE("plan: --memory-cap picks, or says the smallest that works", "[plan]") {
  const std::string common = "schedule --stages 4 --microbatches 8 ";
  CHECK(plan(common + "--memory-cap 3.5").out.find("v_half: 4 ranks x 2 chunks") == 0);
  CHECK(plan(common + "--memory-cap 3.5 --chunks 1").out.find("zb_search: 4 ranks x 1 chunk") == 0);
  CHECK(plan(common + "--memory-cap 100").out.find("makespan  25.5\n") != std::string::npos);
  refused(common + "--memory-cap 0.5", 2,
          "no schedule fits into a memory cap of 0.5; the smallest that works is 2 (v_min");
  refused(common + "--memory-cap 3 --schedule 1f1b", 2,
          "1f1b needs memory for 4 microbatches, --memory-cap is 3");
  CHECK(plan(common + "--memory-cap 4 --schedule 1f1b").code == 0);
  CHECK(plan(common + "--memory-cap 4 --compare").out.find("over the cap") != std::string::npos);
  const result none = plan(common + "--memory-cap 1 --compare");
  CHECK(none.code == 2);
  CHECK(none.err.find("the smallest that works is 2") != std::string::npos);
}

TEST_CASE("plan: --cost-model prices transfers by measured links, near and far ones", "[plan]") {
  const folder here;
  const std::string links = here.file("links.json"),
                    shape =
                        "schedule --schedule gpipe --stages 4 --microbatches 1 --quiet --lower ";
  write(links, R"({"schema": "polyrank.cost_model/1", "alpha": 0.5, "beta": 1e9,
                   "inside_alpha": 0.25, "inside_beta": 4e9, "between_alpha": 1})");
  const std::string priced = shape + "--cost-model " + links + " --transfer-bytes 1000000000 ";
  // Three transfers forth and three back around 4 x (F + I + W): 12 without them.
  CHECK(plan(shape).out == "12\n");
  CHECK(plan(priced).out == "15\n");                        // 0.25 s + 1 GB / (4 GB/s) each
  CHECK(plan(priced + "--ranks-per-node 2").out == "18\n"); // the middle one 1 s + 1 s
  refused(shape + "--cost-model " + links, 2, "--cost-model and --transfer-bytes go together");
  refused(shape + "--transfer-bytes 5", 2, "--cost-model and --transfer-bytes go together");
  refused(shape + "--ranks-per-node 2", 2, "--ranks-per-node goes with --cost-model");
  refused(priced + "--costs 1,1,1,1", 2, "c of --costs must be 0");
  refused(shape + "--transfer-bytes 5 --cost-model /nowhere", 1, "/nowhere: cannot open");
  write(links, "{}");
  refused(priced, 1, "no cost model");
}

TEST_CASE("plan: wrong flags are refused in one line with exit code 2", "[plan]") {
  const std::string ok = "--stages 4 --microbatches 8 ";
  refused("", 2, "--help");
  refused("throughput", 2, "--help");
  refused("memory", 2, "--help");
  refused("schedule --nonsense", 2, "--nonsense");
  refused("schedule", 2, "say --schedule NAME");
  refused("schedule --schedule 1f1b", 2, "--stages and --microbatches are needed");
  refused("schedule " + ok, 2, "say --schedule NAME");
  refused("schedule --schedule 2f2b " + ok, 2, "unknown schedule \"2f2b\"; there are gpipe");
  refused("schedule --schedule 1f1b --compare " + ok, 2, "exclude each other");
  refused("schedule --schedule 1f1b --stages 4 --microbatches 0", 2,
          "--microbatches must be at least 1");
  refused("schedule --schedule 1f1b --stages 0 --microbatches 4", 2, "--stages must be at least 1");
  refused("schedule --schedule bfs --chunks 0 " + ok, 2, "--chunks must be at least 1");
  refused("schedule --schedule 1f1b --stages -4 --microbatches 4", 2, "--stages");
  refused("schedule --schedule 1f1b --stages 1.5 --microbatches 4", 2, "--stages");
  refused("schedule --schedule 1f1b --stages four --microbatches 4", 2, "--stages");
  refused("schedule --schedule zb_v --chunks 3 " + ok, 2,
          "zb_v takes exactly 2 chunks per rank, got 3");
  refused("schedule --schedule 1f1b --stages 70000 --microbatches 4", 2, "more than 65535 stages");
  refused("schedule --schedule 1f1b --stages 60000 --microbatches 16000000", 2, "forward passes");
  refused("schedule --schedule bfs --layers 30 " + ok, 2, "30 layers do not divide");
  refused("schedule --compare --layers 30 " + ok, 2, "30 layers do not divide");
  for (const char* costs : {"1,1,1", "1,1,1,0,0", "1,1,1,x", "", "1;1;1;0", "nan,1,1,0"})
    refused("schedule --compare " + ok + "--costs '" + costs + "'", 2, "--costs");
  refused("schedule --compare " + ok + "--costs=-1,1,1,0", 2, "--costs: F is -1");
  refused("schedule --compare " + ok + "--costs 1,1,1e300,0", 2, "--costs: W is 1e+300");
  refused("schedule --compare " + ok + "--costs 0,0,0,1", 2, "F, B and W are all 0");
  refused("schedule --compare " + ok + "--svg x.svg", 2, "want one schedule");
  refused("schedule --compare " + ok + "--columns 80", 2, "--columns wants one schedule");
  refused("schedule --schedule 1f1b --columns 5 " + ok, 2, "--columns must be from 20");
  refused("schedule --schedule 1f1b --weight-memory 2 " + ok, 2, "--weight-memory must be");
  refused("schedule --schedule 1f1b --lower --lanes many " + ok, 2, "--lanes must be single or");
  refused("schedule --schedule 1f1b --lanes single " + ok, 2, "--lanes has an effect with");
  refused("schedule --memory-cap 0 " + ok, 2, "--memory-cap must be above 0");
  refused("schedule --memory-cap inf " + ok, 2, "--memory-cap must be above 0");
  refused("schedule --validate x.csv --layers 8", 2, "--layers does not go with --validate");
  refused("schedule --schedule 1f1b --svg /proc/none/x.svg " + ok, 1, "/proc/none");
}

TEST_CASE("plan: help and version", "[plan]") {
  CHECK(plan("--help").code == 0);
  CHECK(plan("--help").out.find("schedule") != std::string::npos);
  CHECK(plan("schedule --help").out.find("--memory-cap") != std::string::npos);
  CHECK(plan("--version").out.find("polyrank_plan ") == 0);
  CHECK(plan("schedule --version").out.find("polyrank_plan ") == 0);
}
