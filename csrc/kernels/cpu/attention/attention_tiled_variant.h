// What both passes of attention_tiled are to the tuner: a variant for each instruction-set level.
#pragma once

#include "kernels/cpu/attention/attention_tiles.h"
#include "operators/attention/attention.h"

namespace sparse_autotune::cpu_attention {

// `Pass(arguments, dtype, steps, threads)` computes it: bytes() is the workspace that it takes, of
// which it reads no address, and run() computes. `kArgumentsOf` makes its arguments.
template <typename Pass, auto kArgumentsOf, attention::Pass kPass>
class AttentionTiled final : public attention::Variant {
 public:
  AttentionTiled(std::string_view name, const Level& level)
      : Variant(DeviceType::kCpu, name, kPass), level_(level) {}

  Support supports(const attention::Problem& p, const Device& d) const override {
    return level_.supports(d, p.dtype);
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return roofline_us(attention::nnz_flops(p), level_.share(d) * attention::fma_tflops(p, d),
                       attention::compulsory_bytes(p), d.memory_gbps, 10.0);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device& d) const override {
    return Pass(kArgumentsOf(p, {}), p.dtype, *level_.steps(), d.threads).bytes();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    Pass(kArgumentsOf(p, l), p.dtype, *level_.steps(), l.device->threads).run(l.parallel);
    return Status::ok();
  }

 private:
  const Level& level_;
  Registration registration_{*this};
};

}  // namespace sparse_autotune::cpu_attention
