// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
//
// What is booked in a pool and what that teaches; predictions are in pool_predict.cpp.
#include "pool.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace goodput {

namespace {

// First tokens that come within this time are of one engine step.
constexpr double kSameStepS = 0.003;
constexpr double kMinTimeS = 1e-9;

int64_t handle_of(int index, uint32_t generation) {
  return (static_cast<int64_t>(generation) << 32) | static_cast<int64_t>(index);
}

int index_of(int64_t handle) { return static_cast<int>(handle & 0xffffffff); }

uint32_t generation_of(int64_t handle) { return static_cast<uint32_t>(handle >> 32); }

}  // namespace

int Pool::add_instance(int limit) {
  auto made = std::make_unique<Instance>();
  made->limit = std::max(1, limit);
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    if (!instances_[i]) {
      instances_[i] = std::move(made);
      return static_cast<int>(i);
    }
  }
  instances_.push_back(std::move(made));
  return static_cast<int>(instances_.size()) - 1;
}

void Pool::remove_instance(int slot) {
  for (int index : at(slot).bookings) {
    vacate(index);
  }
  instances_[slot].reset();
}

void Pool::set_limit(int slot, int limit) { at(slot).limit = std::max(1, limit); }

void Pool::set_speed(int slot, std::shared_ptr<SpeedEstimator> speed) {
  at(slot).speed = std::move(speed);
  at(slot).now.samples = -1;
}

std::shared_ptr<SpeedEstimator> Pool::speed(int slot) const { return at(slot).speed; }

int Pool::in_flight(int slot) const { return static_cast<int>(at(slot).bookings.size()); }

int64_t Pool::book(int slot, const Demand& demand, double hit_tokens, double ttft_s, double tpot_s,
                   std::shared_ptr<const Lengths> lengths, double now_s) {
  Instance& instance = at(slot);
  settle(instance, now_s);
  advance(instance, now_s);
  if (free_.empty()) {
    free_.push_back(static_cast<int>(bookings_.size()));
    bookings_.emplace_back();
  }
  const int index = free_.back();
  free_.pop_back();
  Booking& booking = bookings_[index];
  booking.demand = demand;
  booking.lengths = std::move(lengths);
  booking.slot = slot;
  booking.dispatched_s = now_s;
  booking.prefill = std::max(1.0, demand.prompt_len - hit_tokens);
  booking.ttft_s = ttft_s;
  booking.tpot_s = std::max(kMinTimeS, tpot_s);
  booking.tokens = demand.generated;
  booking.passed = booking.lengths->cdf(booking.tokens);
  booking.saturated = in_flight(slot) >= instance.limit;
  if (instance.queued_prefill <= 0.0) {
    instance.served_since_s = now_s;
  }
  const double served = served_tokens(instance, now_s);
  booking.queued_prefill = instance.queued_prefill - served + booking.prefill;
  booking.prefilled_before = instance.prefilled() + served;
  instance.prompt_tokens += booking.prefill;
  booking.prompt_mark = instance.prompt_tokens;
  instance.prompt_rate += booking.prefill * unit_;
  instance.first_booked_s = std::min(instance.first_booked_s, now_s);
  instance.queued_prefill += booking.prefill;
  booking.booked_tokens = booking.prefill + booking.lengths->remaining(booking.tokens, kMedian);
  instance.booked_tokens += booking.booked_tokens;
  const int64_t handle = handle_of(index, booking.generation);
  instance.front.push_back(handle);
  if (!demand.streaming) {
    instance.guesses.emplace(now_s + ttft_s, handle);
  }
  instance.bookings.push_back(index);
  instance.slot_wait_at_s = -kInf;
  return handle;
}

void Pool::first_token(int64_t handle, double now_s) {
  Booking& booking = get(handle);
  Instance& instance = at(booking.slot);
  settle(instance, now_s);
  advance(instance, now_s);
  if (booking.prefilling) {
    end_prefill(instance, booking, now_s);
  }
  booking.first = true;
  booking.tokens = std::max(booking.tokens, booking.demand.generated + 1.0);
  booking.passed = booking.lengths->cdf(booking.tokens);
  booking.tokens_at_mark = booking.demand.generated + 1.0;
  booking.mark = {now_s, instance.sequence_seconds, instance.prefilled()};
  if (!booking.saturated) {
    instance.fresh.push_back({now_s - booking.dispatched_s, now_s, booking.prefilled_before});
  }
}

void Pool::progress(int64_t handle, double tokens) {
  Booking& booking = get(handle);
  if (tokens > booking.tokens) {
    booking.tokens = tokens;
    booking.passed = booking.lengths->cdf(tokens);
  }
}

void Pool::release(int64_t handle, double output_len, double now_s) {
  Booking& booking = get(handle);
  Instance& instance = at(booking.slot);
  settle(instance, now_s);
  advance(instance, now_s);
  if (booking.prefilling) {
    end_prefill(instance, booking, now_s);
  }
  const int index = index_of(handle);
  instance.bookings.erase(std::find(instance.bookings.begin(), instance.bookings.end(), index));
  instance.booked_tokens = instance.bookings.empty()
                               ? 0.0
                               : std::max(0.0, instance.booked_tokens - booking.booked_tokens);
  instance.slot_wait_at_s = -kInf;
  if (output_len >= 1.0) {
    learn(instance, booking, output_len, now_s);
  }
  vacate(index);
}

// Nothing is booked there any more; the handle that was given for it is void.
void Pool::vacate(int index) {
  const uint32_t generation = bookings_[index].generation + 1;
  bookings_[index] = Booking{};
  bookings_[index].generation = generation;
  free_.push_back(index);
}

bool Pool::open(int64_t handle) const {
  const int index = index_of(handle);
  return handle >= 0 && static_cast<std::size_t>(index) < bookings_.size() &&
         bookings_[index].slot >= 0 && bookings_[index].generation == generation_of(handle);
}

const Booking& Pool::booking(int64_t handle) const {
  if (!open(handle)) {
    throw std::out_of_range("no open booking has the handle " + std::to_string(handle));
  }
  return bookings_[index_of(handle)];
}

Booking& Pool::get(int64_t handle) { return const_cast<Booking&>(booking(handle)); }

void Pool::moved(int64_t handle, int moves, double now_s) {
  Booking& booking = get(handle);
  booking.moves = moves;
  booking.moved_s = now_s;
}

std::vector<int64_t> Pool::handles(int slot) const {
  std::vector<int64_t> out;
  for (int index : at(slot).bookings) {
    out.push_back(handle_of(index, bookings_[index].generation));
  }
  return out;
}

double Pool::queued_prefill(int slot, double now_s) {
  settle(at(slot), now_s);
  return at(slot).queued_prefill;
}

Instance& Pool::at(int slot) {
  if (slot < 0 || slot >= slots() || !instances_[slot]) {
    throw std::out_of_range("no instance has the slot " + std::to_string(slot));
  }
  return *instances_[slot];
}

const Instance& Pool::at(int slot) const { return const_cast<Pool*>(this)->at(slot); }

// Copies the speed if it has changed, whoever taught it.
void Pool::refresh(Instance& instance) {
  const SpeedEstimator& speed = *instance.speed;
  if (instance.now.samples == speed.samples()) {
    return;
  }
  instance.now = {speed.overhead_s(),      speed.prefill_token_s(),
                  speed.decode_base_s(),   speed.decode_sequence_s(),
                  speed.decode_offset_s(), speed.known(),
                  speed.samples()};
}

// First tokens that nobody reports are taken to have come when they were due.
void Pool::settle(Instance& instance, double now_s) {
  set_clock(now_s);
  refresh(instance);
  learn_first_tokens(instance, now_s);
  while (!instance.guesses.empty() && instance.guesses.top().first <= now_s) {
    const auto [due_s, handle] = instance.guesses.top();
    instance.guesses.pop();
    if (open(handle) && get(handle).prefilling) {
      end_prefill(instance, get(handle), due_s);
    }
  }
}

// Brings the integral of running sequences over time up to now; called before every change.
void Pool::advance(Instance& instance, double now_s) {
  const auto running =
      std::min<double>(instance.limit, static_cast<double>(instance.bookings.size()));
  instance.sequence_seconds += running * std::max(0.0, now_s - instance.advanced_s);
  instance.advanced_s = now_s;
}

void Pool::end_prefill(Instance& instance, Booking& booking, double now_s) {
  booking.prefilling = false;
  instance.queued_prefill = std::max(0.0, instance.queued_prefill - booking.prefill);
  instance.served_since_s = now_s;
  trim_front(instance);
  if (instance.front.empty()) {
    instance.queued_prefill = 0.0;  // no rest of sums of floats
  }
}

void Pool::trim_front(Instance& instance) {
  while (!instance.front.empty() &&
         !(open(instance.front.front()) && get(instance.front.front()).prefilling)) {
    instance.front.pop_front();
  }
}

// Prefills that end in the same engine step all take its whole time, so their timings are learned
// once no more of them can come.
void Pool::learn_first_tokens(Instance& instance, double now_s) {
  if (instance.fresh.empty() || now_s <= instance.fresh.back().at_s + kSameStepS) {
    return;
  }
  const double prefilled = instance.prefilled();
  for (const FirstToken& one : instance.fresh) {
    instance.speed->add({one.waited_s, 1.0, prefilled - one.prefilled_before, 0.0, 0.0});
  }
  instance.fresh.clear();
}

void Pool::learn(const Instance& instance, const Booking& booking, double output_len,
                 double now_s) {
  if (booking.first) {
    const double steps = output_len - booking.tokens_at_mark;
    if (steps < 1.0) {
      return;
    }
    const double time_s = std::max(kMinTimeS, now_s - booking.mark.at_s);
    const double sequences = (instance.sequence_seconds - booking.mark.sequence_seconds) / time_s;
    const double others = std::max(0.0, instance.prefilled() - booking.mark.prefilled);
    instance.speed->add({time_s, 0.0, others, steps, steps * std::max(1.0, sequences)});
  } else if (!booking.demand.streaming && !booking.saturated && booking.demand.generated == 0.0) {
    const double time_s = std::max(kMinTimeS, now_s - booking.dispatched_s);
    const double prefill = booking.queued_prefill + instance.prompt_tokens - booking.prompt_mark;
    const double sequences = std::min(static_cast<double>(instance.limit),
                                      static_cast<double>(instance.bookings.size()) + 1.0);
    const double steps = std::max(0.0, output_len - 1.0);
    instance.speed->add({time_s, 1.0, prefill, steps, steps * sequences});
  }
}

}  // namespace goodput
