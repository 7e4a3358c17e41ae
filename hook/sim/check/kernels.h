/* kernels.h: kernels as PTX that a real compiler accepts, with their costs and effects on the
 * simulated GPU. */
#pragma once

#define KERNELS_INDEX                                                          \
    " mov.u32 %r1, %ctaid.x;\n mov.u32 %r2, %ntid.x;\n mov.u32 %r3, %tid.x;\n" \
    " mad.lo.s32 %r4, %r1, %r2, %r3;\n setp.ge.s32 %p1, %r4, %r5;\n @%p1 bra DONE;\n"

static const char kernels_ptx[] __attribute__((unused)) =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    "// gfaas-sim: vadd op=vadd_f32\n"
    "// gfaas-sim: vadd block_us=20\n"
    "// gfaas-sim: saxpy block_us=20 op=saxpy_f32\n"
    "// gfaas-sim: sgemm block_us=50 op=sgemm_f32\n"
    "// gfaas-sim: slow block_us=2000\n"
    "// gfaas-sim: tick block_us=1000\n"
    ".visible .global .align 4 .u32 counter = 7;\n"
    ".visible .global .align 8 .b8 table[24];\n"
    ".visible .entry tick()\n{\n ret;\n}\n"
    ".visible .entry slow()\n{\n ret;\n}\n"
    ".visible .entry mixed(.param .u8 a, .param .align 8 .b8 s[12], .param .u16 b, .param .u64 p)\n{\n ret;\n}\n"
    ".visible .entry vadd(\n .param .u64 a,\n .param .u64 b, // the second\n .param .u64 c,\n .param .u32 n\n)\n{\n"
    " .reg .pred %p<2>;\n .reg .f32 %f<4>;\n .reg .b32 %r<6>;\n .reg .b64 %rd<11>;\n"
    " ld.param.u64 %rd1, [a];\n ld.param.u64 %rd2, [b];\n ld.param.u64 %rd3, [c];\n"
    " ld.param.u32 %r5, [n];\n" KERNELS_INDEX
    " mul.wide.s32 %rd4, %r4, 4;\n add.s64 %rd5, %rd1, %rd4;\n add.s64 %rd6, %rd2, %rd4;\n"
    " add.s64 %rd7, %rd3, %rd4;\n ld.global.f32 %f1, [%rd5];\n ld.global.f32 %f2, [%rd6];\n"
    " add.f32 %f3, %f1, %f2;\n st.global.f32 [%rd7], %f3;\nDONE:\n ret;\n}\n"
    ".visible .entry saxpy(.param .f32 k, .param .u64 x, .param .u64 y, .param .u32 n)\n{\n"
    " .reg .pred %p<2>;\n .reg .f32 %f<5>;\n .reg .b32 %r<6>;\n .reg .b64 %rd<8>;\n"
    " ld.param.f32 %f1, [k];\n ld.param.u64 %rd1, [x];\n ld.param.u64 %rd2, [y];\n"
    " ld.param.u32 %r5, [n];\n" KERNELS_INDEX
    " mul.wide.s32 %rd4, %r4, 4;\n add.s64 %rd5, %rd1, %rd4;\n add.s64 %rd6, %rd2, %rd4;\n"
    " ld.global.f32 %f2, [%rd5];\n ld.global.f32 %f3, [%rd6];\n fma.rn.f32 %f4, %f1, %f2, %f3;\n"
    " st.global.f32 [%rd6], %f4;\nDONE:\n ret;\n}\n"
    /* one thread per element, one-dimensional blocks over m * n */
    ".visible .entry sgemm(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 m, .param .u32 n, .param .u32 k)\n"
    "{\n .reg .pred %p<3>;\n .reg .f32 %f<5>;\n .reg .b32 %r<20>;\n .reg .b64 %rd<12>;\n"
    " ld.param.u64 %rd1, [a];\n ld.param.u64 %rd2, [b];\n ld.param.u64 %rd3, [c];\n"
    " ld.param.u32 %r10, [m];\n ld.param.u32 %r11, [n];\n ld.param.u32 %r12, [k];\n"
    " mul.lo.s32 %r5, %r10, %r11;\n" KERNELS_INDEX
    " div.s32 %r13, %r4, %r11;\n rem.s32 %r14, %r4, %r11;\n mul.lo.s32 %r15, %r13, %r12;\n"
    " mov.u32 %r16, 0;\n mov.f32 %f1, 0f00000000;\n"
    "NEXT:\n setp.ge.s32 %p2, %r16, %r12;\n @%p2 bra STORE;\n"
    " add.s32 %r17, %r15, %r16;\n mul.wide.s32 %rd4, %r17, 4;\n add.s64 %rd5, %rd1, %rd4;\n ld.global.f32 %f2, [%rd5];\n"
    " mad.lo.s32 %r18, %r16, %r11, %r14;\n mul.wide.s32 %rd6, %r18, 4;\n add.s64 %rd7, %rd2, %rd6;\n"
    " ld.global.f32 %f3, [%rd7];\n fma.rn.f32 %f1, %f2, %f3, %f1;\n add.s32 %r16, %r16, 1;\n bra NEXT;\n"
    "STORE:\n mul.wide.s32 %rd8, %r4, 4;\n add.s64 %rd9, %rd3, %rd8;\n st.global.f32 [%rd9], %f1;\nDONE:\n ret;\n}\n";
