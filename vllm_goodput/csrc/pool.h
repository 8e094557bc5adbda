// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// The router's view of a pool: what is booked on each instance, what that has taught of its speed,
// and what a request would meet there. Plain C++ without Python, no clock of its own; times are
// seconds on the caller's clock. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "lengths.h"
#include "speed_estimator.h"

namespace goodput {

constexpr double kInf = std::numeric_limits<double>::infinity();
// Quantile of a length in sums over many requests, whose errors cancel out.
constexpr double kMedian = 0.5;

// What a request asks of an instance.
struct Demand {
  double prompt_len = 1.0;        // tokens to be in place before the next one comes
  double generated = 0.0;         // output tokens that it has already (a request that moves)
  double deadline_s = kInf;       // of the whole answer
  double ttft_deadline_s = kInf;  // of the first token
  double tpot_slo_s = kInf;
  bool streaming = true;  // whether first token and progress are reported
};

// Counters of an instance at a moment; differences of two give what happened between.
struct Mark {
  double at_s = 0.0;
  double sequence_seconds = 0.0;
  double prefilled = 0.0;
};

// A request dispatched to an instance and not finished.
struct Booking {
  Demand demand;
  std::shared_ptr<const Lengths> lengths;
  int slot = -1;  // -1: none
  uint32_t generation = 0;
  double dispatched_s = 0.0;
  double prefill = 0.0;           // prompt tokens to compute
  double ttft_s = 0.0;            // predicted
  double tpot_s = 0.0;            // predicted
  double queued_prefill = 0.0;    // tokens to compute before its first token, its own included
  double prefilled_before = 0.0;  // of its instance when it was dispatched
  double prompt_mark = 0.0;       // the instance's count of prompt tokens at dispatch
  double tokens = 0.0;            // output tokens so far
  double passed = 0.0;            // probability that it would have ended by now
  double moved_s = -kInf;         // when it last moved here from another instance
  int moves = 0;
  double booked_tokens = 0.0;  // its share of the instance's
  bool saturated = false;      // all sequences were taken when it was dispatched
  bool prefilling = true;      // counted in its instance's queued prefill
  bool first = false;          // its first token on this instance was reported
  Mark mark;                   // at that token
  double tokens_at_mark = 0.0;
};

// A first token whose timing has still to be learned: others of the same engine step may follow.
struct FirstToken {
  double waited_s;
  double at_s;
  double prefilled_before;  // prompt tokens computed when it was dispatched
};

// What an instance's estimator says, copied so that predictions need not ask it again.
struct Speed {
  double overhead_s = 0.0;
  double token_s = 0.0;  // p
  double base_s = 0.0;   // d(n) = base_s + sequence_s * n
  double sequence_s = 0.0;
  double offset_s = 0.0;  // of an answer's decode part
  bool known = false;
  int64_t samples = -1;

  double step_s(double sequences) const { return decode_step(base_s, sequence_s, sequences); }
  // Of an answer with so many decode steps.
  double decode_s(double tpot_s, double steps) const {
    return steps > 0.0 ? std::max(0.0, offset_s + tpot_s * steps) : 0.0;
  }
};

struct Instance {
  int limit = 1;
  Speed now;
  double chunk = 2048.0;  // prompt tokens per engine step at most
  std::shared_ptr<SpeedEstimator> speed = std::make_shared<SpeedEstimator>();
  std::vector<int> bookings;  // indices, in order of dispatch
  std::deque<int64_t> front;  // handles in order of dispatch; the first that prefills is served
  using Guess = std::pair<double, int64_t>;
  // When the first tokens of requests that report none are due.
  std::priority_queue<Guess, std::vector<Guess>, std::greater<Guess>> guesses;
  double queued_prefill = 0.0;
  double booked_tokens = 0.0;
  double served_since_s = 0.0;  // when the front of the queue began to be computed
  double prompt_tokens = 0.0;   // to compute, since the beginning
  double sequence_seconds = 0.0;
  double advanced_s = 0.0;
  double prompt_rate = 0.0;  // decayed sum of prompt tokens, in the pool's growing unit
  double first_booked_s = kInf;
  std::vector<FirstToken> fresh;
  double slot_wait_s = 0.0;  // cached
  double slot_wait_at_s = -kInf;

  double prefilled() const { return prompt_tokens - queued_prefill; }  // prompt tokens computed
};

// What a request would meet on each of some instances; reused by the next call.
struct Candidates {
  std::vector<int> slot, in_flight, limit;
  // Predicted: wait before its own prefill, prefill, decode, per output token.
  std::vector<double> queue_s, prefill_s, decode_s, tpot_s;
  std::vector<double> offset_s;    // of the decode's, whatever its length; may be negative
  std::vector<double> hit_tokens;  // of its prompt, expected in the prefix cache
  std::vector<double> alone_s;     // end to end if the instance were idle
  std::vector<double> alone_tpot_s;
  std::vector<double> booked_tokens;  // prompt and predicted output of what is booked
  std::vector<double> chance;         // of meeting every objective; see chances()
  std::vector<uint8_t> known;         // whether the instance has ever been measured
  void resize(std::size_t n);
  std::size_t size() const { return slot.size(); }
};

class Pool {
 public:
  // Returns the new instance's slot, a small number that a later instance may get again.
  int add_instance(int limit);
  void remove_instance(int slot);  // its bookings are forgotten
  void set_limit(int slot, int limit);
  void set_speed(int slot, std::shared_ptr<SpeedEstimator> speed);
  std::shared_ptr<SpeedEstimator> speed(int slot) const;
  int in_flight(int slot) const;
  int slots() const { return static_cast<int>(instances_.size()); }

  // A request was dispatched. `hit_tokens` of its prompt are in the prefix cache; `ttft_s` and
  // `tpot_s` are predicted. Returns a handle that is never given twice.
  int64_t book(int slot, const Demand& demand, double hit_tokens, double ttft_s, double tpot_s,
               std::shared_ptr<const Lengths> lengths, double now_s);
  void first_token(int64_t handle, double now_s);
  void progress(int64_t handle, double tokens);
  // The request left. With `output_len` >= 1 it had finished by itself and teaches its timing.
  void release(int64_t handle, double output_len, double now_s);
  bool open(int64_t handle) const;
  const Booking& booking(int64_t handle) const;  // throws std::out_of_range
  void moved(int64_t handle, int moves, double now_s);
  std::vector<int64_t> handles(int slot) const;

  // Predicts a request on each of `slots`; `hits` are tokens of its prompt in their prefix caches,
  // one per slot of the pool, or null.
  void evaluate(const int* slots, std::size_t count, const double* hits, const Demand& demand,
                double output_len, double now_s);
  // Fills the chance of each candidate: the probability that every objective is met, with predicted
  // times stretched by `stretch`.
  void chances(const Demand& demand, const Lengths& lengths, double stretch, double now_s);
  Candidates& candidates() { return candidates_; }

  // Expected number of booked requests that would miss their objectives because of `prefill` more
  // prompt tokens and one more sequence.
  double harm(int slot, double prefill, double now_s);
  // The chance that a booked request meets its objectives where it is.
  double chance_to_stay(int64_t handle, double now_s);
  // When the next request booked on a candidate is expected to finish; inf when none is booked.
  double soonest_finish_s(double now_s);
  double queued_prefill(int slot, double now_s);
  // Fraction of the instance's time that prefills to come take at the recent rate.
  double prefill_share(int slot, double now_s);

 private:
  Instance& at(int slot);
  const Instance& at(int slot) const;
  Booking& get(int64_t handle);
  void vacate(int index);
  double next_finish_s(int slot, double now_s);
  double generated(const Booking& booking, double now_s) const;
  void settle(Instance& instance, double now_s);
  static void refresh(Instance& instance);
  void advance(Instance& instance, double now_s);
  void end_prefill(Instance& instance, Booking& booking, double now_s);
  void trim_front(Instance& instance);
  double backlog_s(Instance& instance, double now_s);
  double slot_wait_s(Instance& instance, double now_s);
  double tpot_s(const Instance& instance, double sequences, double now_s) const;
  double share(const Instance& instance, double now_s) const;
  double rate(const Instance& instance, double now_s) const;
  void set_clock(double now_s);
  double still_within(const Instance& instance, const Booking& booking, double ahead_s,
                      double backlog_s, double tpot_s, double now_s) const;
  double served_tokens(const Instance& instance, double now_s);
  void learn_first_tokens(Instance& instance, double now_s);
  void learn(const Instance& instance, const Booking& booking, double output_len, double now_s);

  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<Booking> bookings_;
  std::vector<int> free_;
  Candidates candidates_;
  std::vector<double> heap_;
  // Decayed sums are kept in a unit that grows with time, so that ageing touches none of them.
  double unit_since_s_ = 0.0;
  double unit_at_s_ = 0.0;
  double unit_ = 1.0;
};

}  // namespace goodput
