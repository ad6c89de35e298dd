"""A Fortran module over the C source, and the program that proves it."""

from __future__ import annotations

from shoal.export.c_source import CSource
from shoal.export.plan import Plan

PROVER = """\
program prove
   use, intrinsic :: iso_c_binding
   use NAME_module
   implicit none
   integer, parameter :: num_in = 2 + NAME_num_obs
   type(NAME_state) :: state
   real(c_double), allocatable :: in(:, :)
   real(c_double) :: action(NAME_num_action), now, begin
   character(len=4096) :: from, to, text
   integer :: count, n, status, calls

   call get_command_argument(1, from)
   call get_command_argument(2, to)
   call get_command_argument(3, text)
   read (text, *) count
   allocate (in(num_in, count))
   open (10, file=trim(from), access="stream", form="unformatted", status="old")
   read (10) in
   open (11, file=trim(to), access="stream", form="unformatted", status="replace")
   do n = 1, count
      call ask(n)
      if (status /= 0) stop 2
      write (11) action, real(state%outputs, c_double)
   end do
   close (11)
   calls = 0
   call cpu_time(begin)
   do
      do n = 1, count
         call ask(n)
      end do
      calls = calls + count
      call cpu_time(now)
      if (now - begin > 0.1) exit
   end do
   print *, 1e6_c_double*(now - begin)/calls

contains

   subroutine ask(n)
      integer, intent(in) :: n
      if (in(1, n) /= 0) call NAME_reset(state)
      SET_REWARD
      status = NAME_act(state, in(3:, n), action)
   end subroutine
end program prove
"""

PUBLIC = ("state", "reset", "act", "num_obs", "num_action", "num_outputs")


def fortran_module(source: CSource) -> str:
    """The text of `NAME_module.f90`; with the longest name, no line of it has more than Fortran's 132 columns."""
    plan, name = source.plan, source.name
    members = []
    for _, member, size, note in source.members("! {}"):
        members.append(f"      real(c_float) :: {member}({size}){note}")
    return "\n".join(
        [
            f"! {source.title}: a trained policy, written by `shoal export`; {name}.h tells what the numbers are.",
            f"!     cc -O3 -c {name}.c && gfortran -O2 {name}_module.f90 your_program.f90 {name}.o -lm",
            "!",
            "!     use, intrinsic :: iso_c_binding, only: c_double",
            f"!     use {name}_module",
            f"!     type({name}_state) :: state",
            f"!     real(c_double) :: obs({name}_num_obs), action({name}_num_action)",
            f"!     call {name}_reset(state)                   ! once, and wherever an episode begins",
            f"!     if ({name}_act(state, obs, action) /= 0) error stop",
            f"module {name}_module",
            "   use, intrinsic :: iso_c_binding, only: c_int, c_float, c_double",
            "   implicit none",
            "   private",
            *(f"   public :: {name}_{what}" for what in PUBLIC),
            f"   integer, parameter :: {name}_num_obs = {plan.num_obs}",
            f"   integer, parameter :: {name}_num_action = {plan.num_action}",
            f"   integer, parameter :: {name}_num_outputs = {len(plan.head.bias)}",
            "",
            "   ! Memory, and room to work in; each thread or controlled object has one of its own.",
            f"   type, bind(c) :: {name}_state",
            *members,
            "   end type",
            "",
            "   interface",
            "      ! Call it once before the first action, and wherever an episode begins.",
            f"      subroutine {name}_reset(state) &",
            f'            bind(c, name="{name}_reset")',
            f"         import :: {name}_state",
            f"         type({name}_state), intent(inout) :: state",
            "      end subroutine",
            "      ! The likeliest action. Returns 0; 1: a number is not finite; 2: a mask allows nothing.",
            f"      integer(c_int) function {name}_act(state, obs, action) &",
            f'            bind(c, name="{name}_act")',
            f"         import :: c_int, c_double, {name}_state",
            f"         type({name}_state), intent(inout) :: state",
            f"         real(c_double), intent(in) :: obs({plan.num_obs})",
            f"         real(c_double), intent(inout) :: action({plan.num_action})",
            "      end function",
            "   end interface",
            f"end module {name}_module",
            "",
        ]
    )


def fortran_prover(plan: Plan, name: str) -> str:
    """A program that asks the policy about the observations of a file, and times it."""
    set_reward = "state%reward(1) = real(in(2, n), c_float)" if plan.sees_reward else ""
    return PROVER.replace("NAME", name).replace("SET_REWARD", set_reward)
