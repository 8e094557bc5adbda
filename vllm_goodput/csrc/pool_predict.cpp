// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// What a request would meet on each instance of a pool, and what it would do to others.
#include <algorithm>
#include <cmath>

#include "pool.h"

namespace goodput {

namespace {

// At most this fraction of an instance's time is assumed to go to prefills of requests to come.
constexpr double kMaxPrefillShare = 0.6;
// Half-life of the arrival rate of prompt tokens, seconds.
constexpr double kRateWindowS = 10.0;
// The rate of an instance that has just begun to get requests counts as that of so long at least.
constexpr double kMinRateS = 2.0;
// After so long it makes no difference when an instance began.
constexpr double kSettledS = 20.0 * kRateWindowS;
// The unit of decayed sums begins again before it grows too large.
constexpr double kRebaseS = 64.0 * kRateWindowS;
// An expected wait for a free sequence is used for so long unless a booking changes it.
constexpr double kSlotWaitValidS = 0.25;
// The next finish is looked for among so many bookings.
constexpr std::size_t kFinishLooks = 500;

}  // namespace

void Candidates::resize(std::size_t n) {
  for (auto* column : {&slot, &in_flight, &limit}) {
    column->resize(n);
  }
  known.resize(n);
  for (auto* column : {&queue_s, &prefill_s, &decode_s, &tpot_s, &offset_s, &hit_tokens, &alone_s,
                       &alone_tpot_s, &booked_tokens, &chance}) {
    column->resize(n);
  }
}

void Pool::evaluate(const int* slots, std::size_t count, const double* hits, const Demand& demand,
                    double output_len, double now_s) {
  Candidates& c = candidates_;
  c.resize(count);
  const double steps = std::max(0.0, output_len - demand.generated - 1.0);
  for (std::size_t k = 0; k < count; ++k) {
    Instance& instance = at(slots[k]);
    settle(instance, now_s);
    const double hit =
        hits ? std::min(hits[slots[k]], std::max(0.0, demand.prompt_len - 1.0)) : 0.0;
    const double tpot =
        tpot_s(instance, static_cast<double>(instance.bookings.size()) + 1.0, now_s);
    const double overhead = instance.now.overhead_s;
    c.slot[k] = slots[k];
    c.in_flight[k] = static_cast<int>(instance.bookings.size());
    c.limit[k] = instance.limit;
    c.hit_tokens[k] = hit;
    c.tpot_s[k] = tpot;
    c.queue_s[k] = overhead + backlog_s(instance, now_s) + slot_wait_s(instance, now_s);
    c.prefill_s[k] = instance.now.token_s * (demand.prompt_len - hit);
    c.offset_s[k] = instance.now.offset_s;
    c.decode_s[k] = instance.now.decode_s(tpot, steps);
    c.alone_tpot_s[k] = instance.now.step_s(1.0);
    c.alone_s[k] = overhead + c.prefill_s[k] + instance.now.decode_s(c.alone_tpot_s[k], steps);
    c.booked_tokens[k] = instance.booked_tokens;
    c.known[k] = instance.now.known;
  }
}

void Pool::chances(const Demand& demand, const Lengths& lengths, double stretch, double now_s) {
  Candidates& c = candidates_;
  const double passed = lengths.cdf(demand.generated);
  for (std::size_t k = 0; k < c.size(); ++k) {
    const double ttft = (c.queue_s[k] + c.prefill_s[k]) * stretch;
    const double tpot = c.tpot_s[k] * stretch;
    const double left = demand.deadline_s - now_s - ttft;
    if (now_s + ttft > demand.ttft_deadline_s || tpot > demand.tpot_slo_s || left < 0.0) {
      c.chance[k] = 0.0;
    } else if (left == kInf) {
      c.chance[k] = 1.0;
    } else {
      const double tokens = 1.0 + (left - c.offset_s[k] * stretch) / tpot;
      c.chance[k] = lengths.ends_within(demand.generated, tokens, passed);
    }
  }
}

double Pool::harm(int slot, double prefill, double now_s) {
  Instance& instance = at(slot);
  if (instance.bookings.empty()) {
    return 0.0;
  }
  settle(instance, now_s);
  const auto count = static_cast<double>(instance.bookings.size());
  const double before = tpot_s(instance, count, now_s);
  const double after = tpot_s(instance, count + 1.0, now_s);
  const double backlog = backlog_s(instance, now_s);
  const double token_s = instance.now.token_s;
  const double more = backlog + token_s * prefill;
  double ahead = -token_s * served_tokens(instance, now_s);
  double lost = 0.0;
  for (int index : instance.bookings) {
    const Booking& booking = bookings_[index];
    if (booking.prefilling) {
      ahead += token_s * booking.prefill;
    }
    if (before <= booking.demand.tpot_slo_s && booking.demand.tpot_slo_s < after) {
      lost += 1.0;
    } else if (booking.demand.deadline_s != kInf) {
      const double wait = booking.prefilling ? std::max(0.0, ahead) : 0.0;
      lost += still_within(instance, booking, wait, backlog, before, now_s) -
              still_within(instance, booking, wait, more, after, now_s);
    }
  }
  return lost;
}

// The chance that a booked request ends in time if its first token is `ahead_s` away, there are
// `backlog_s` of prefill on its instance and a decode step takes `tpot_s`. While prefills go on,
// each of its steps carries a chunk of them.
double Pool::still_within(const Instance& instance, const Booking& booking, double ahead_s,
                          double backlog_s, double tpot_s, double now_s) const {
  const double left = booking.demand.deadline_s - now_s - ahead_s;
  if (left <= 0.0) {
    return 0.0;
  }
  const double behind = std::max(0.0, backlog_s - ahead_s);
  const double chunk = std::min(behind, instance.chunk * instance.now.token_s);
  const double chunks = chunk > 0.0 ? std::ceil(behind / chunk - 1e-9) : 0.0;
  double tokens = left / (tpot_s + chunk);
  if (tokens > chunks) {
    tokens = (left - behind) / tpot_s;
  }
  const double made = generated(booking, now_s);
  const double passed = made == booking.tokens ? booking.passed : booking.lengths->cdf(made);
  return booking.lengths->ends_within(made, tokens, passed);
}

double Pool::chance_to_stay(int64_t handle, double now_s) {
  const Booking& booking = get(handle);
  Instance& instance = at(booking.slot);
  settle(instance, now_s);
  double wait = 0.0;
  if (booking.prefilling) {
    const double token_s = instance.now.token_s;
    wait = -token_s * served_tokens(instance, now_s);
    for (int index : instance.bookings) {
      wait += bookings_[index].prefilling ? token_s * bookings_[index].prefill : 0.0;
      if (&bookings_[index] == &booking) {
        break;
      }
    }
    wait = std::max(0.0, wait);
  }
  if (!booking.first && booking.demand.streaming && now_s + wait > booking.demand.ttft_deadline_s) {
    return 0.0;
  }
  const double tpot = tpot_s(instance, static_cast<double>(instance.bookings.size()), now_s);
  if (tpot > booking.demand.tpot_slo_s) {
    return 0.0;
  }
  if (booking.demand.deadline_s == kInf) {
    return 1.0;
  }
  return still_within(instance, booking, wait, backlog_s(instance, now_s), tpot, now_s);
}

double Pool::soonest_finish_s(double now_s) {
  double soonest = kInf;
  std::size_t looked = 0;
  for (int slot : candidates_.slot) {
    soonest = std::min(soonest, next_finish_s(slot, now_s));
    looked += at(slot).bookings.size();
    if (looked > kFinishLooks) {
      break;  // among so many some finish soon
    }
  }
  return soonest;
}

double Pool::next_finish_s(int slot, double now_s) {
  Instance& instance = at(slot);
  settle(instance, now_s);
  const double tpot = tpot_s(instance, static_cast<double>(instance.bookings.size()), now_s);
  double soonest = kInf;
  for (int index : instance.bookings) {
    const Booking& booking = bookings_[index];
    const double left = booking.lengths->remaining(generated(booking, now_s), kMedian);
    soonest = std::min(soonest, now_s + tpot * left);
  }
  return soonest;
}

double Pool::prefill_share(int slot, double now_s) {
  settle(at(slot), now_s);
  return share(at(slot), now_s);
}

double Pool::generated(const Booking& booking, double now_s) const {
  if (booking.demand.streaming || booking.tokens > booking.demand.generated) {
    return booking.tokens;
  }
  const double elapsed = now_s - booking.dispatched_s - booking.ttft_s;
  return booking.tokens + std::max(0.0, elapsed / booking.tpot_s);
}

// Prompt tokens of the queue's first that have been computed already, as far as can be told.
double Pool::served_tokens(const Instance& instance, double now_s) {
  trim_front(const_cast<Instance&>(instance));
  const double token_s = instance.now.token_s;
  if (instance.front.empty() || token_s <= 0.0) {
    return 0.0;
  }
  const double elapsed = std::max(0.0, now_s - instance.served_since_s);
  return std::min(elapsed / token_s, get(instance.front.front()).prefill);
}

// Time until what is queued has been prefilled.
double Pool::backlog_s(Instance& instance, double now_s) {
  const double left = instance.queued_prefill - served_tokens(instance, now_s);
  return std::max(0.0, left * instance.now.token_s);
}

// Wait for a free sequence, first come first served: the oldest bookings run, the others queue.
double Pool::slot_wait_s(Instance& instance, double now_s) {
  const auto limit = static_cast<std::size_t>(instance.limit);
  if (instance.bookings.size() < limit) {
    return 0.0;
  }
  const double age = now_s - instance.slot_wait_at_s;
  if (age >= 0.0 && age < kSlotWaitValidS) {
    return std::max(0.0, instance.slot_wait_s - age);
  }
  heap_.clear();
  for (std::size_t i = 0; i < instance.bookings.size(); ++i) {
    const Booking& booking = bookings_[instance.bookings[i]];
    const double left = booking.lengths->remaining(generated(booking, now_s), kMedian);
    if (i < limit) {
      heap_.push_back(left);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
    } else {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
      heap_.back() += left;
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
    }
  }
  instance.slot_wait_s = heap_.front() * tpot_s(instance, static_cast<double>(limit), now_s);
  instance.slot_wait_at_s = now_s;
  return instance.slot_wait_s;
}

double Pool::tpot_s(const Instance& instance, double sequences, double now_s) const {
  const double running = std::min(static_cast<double>(instance.limit), sequences);
  return instance.now.step_s(running) / (1.0 - share(instance, now_s));
}

double Pool::share(const Instance& instance, double now_s) const {
  return std::min(kMaxPrefillShare, instance.now.token_s * rate(instance, now_s));
}

// Prompt tokens per second of late; of an instance that has just begun to get requests, since then.
double Pool::rate(const Instance& instance, double now_s) const {
  const double seen = now_s - instance.first_booked_s;
  if (!(seen >= 0.0)) {
    return 0.0;
  }
  constexpr double kWindow = kRateWindowS / 0.6931471805599453;
  const double window =
      seen > kSettledS ? kWindow
                       : kWindow * (1.0 - std::exp2(-std::max(kMinRateS, seen) / kRateWindowS));
  return instance.prompt_rate / (unit_ * window);
}

// Brings the unit of decayed sums up to now.
void Pool::set_clock(double now_s) {
  if (now_s == unit_at_s_) {
    return;
  }
  unit_at_s_ = now_s;
  if (now_s - unit_since_s_ > kRebaseS) {
    const double shrink = std::exp2(-(now_s - unit_since_s_) / kRateWindowS);
    for (auto& instance : instances_) {
      if (instance) {
        instance->prompt_rate *= shrink;
      }
    }
    unit_since_s_ = now_s;
  }
  unit_ = std::exp2((now_s - unit_since_s_) / kRateWindowS);
}

}  // namespace goodput
