! The lines protocol for a simulator in Fortran 2003, over the C client: link shoal_c.c with it.
!
!     if (.not. shoal_connect(low, high, action_low, action_high)) stop 1
!     do while (shoal_begin())                    ! a new episode is wanted; shoal_seed() is its seed, -1 if none
!        call shoal_observe(obs)
!        do while (shoal_action(action))          ! false: the episode is over, or shoal has left
!           ...
!           call shoal_result(obs, reward, terminated, truncated)
!        end do
!     end do
module shoal
   use, intrinsic :: iso_c_binding, only: c_int, c_long_long, c_double
   implicit none
   private
   public :: shoal_connect, shoal_begin, shoal_seed, shoal_observe, shoal_action, shoal_result

   interface
      integer(c_int) function c_connect(num_obs, low, high, num_actions, num_choices, action_low, action_high) &
         bind(c, name="shoal_f_connect")
         import :: c_int, c_double
         integer(c_int), value :: num_obs, num_actions, num_choices
         real(c_double), intent(in) :: low(*), high(*), action_low(*), action_high(*)
      end function
      integer(c_int) function c_begin() bind(c, name="shoal_f_begin")
         import :: c_int
      end function
      integer(c_long_long) function shoal_seed() bind(c, name="shoal_f_seed")
         import :: c_long_long
      end function
      subroutine shoal_observe(obs) bind(c, name="shoal_f_observe")
         import :: c_double
         real(c_double), intent(in) :: obs(*)
      end subroutine
      integer(c_int) function c_action(action) bind(c, name="shoal_f_action")
         import :: c_int, c_double
         real(c_double), intent(out) :: action(*)
      end function
      subroutine c_result(obs, reward, terminated, truncated) bind(c, name="shoal_f_result")
         import :: c_int, c_double
         real(c_double), intent(in) :: obs(*)
         real(c_double), value :: reward
         integer(c_int), value :: terminated, truncated
      end subroutine
   end interface

contains

   logical function shoal_connect(low, high, action_low, action_high)
      real(c_double), intent(in) :: low(:), high(:), action_low(:), action_high(:)
      shoal_connect = c_connect(size(low), low, high, size(action_low), 0, action_low, action_high) /= 0
   end function

   logical function shoal_begin()
      shoal_begin = c_begin() /= 0
   end function

   logical function shoal_action(action)
      real(c_double), intent(out) :: action(:)
      shoal_action = c_action(action) /= 0
   end function

   subroutine shoal_result(obs, reward, terminated, truncated)
      real(c_double), intent(in) :: obs(:), reward
      logical, intent(in) :: terminated, truncated
      call c_result(obs, reward, merge(1, 0, terminated), merge(1, 0, truncated))
   end subroutine
end module shoal
