! The same solver with the trained controller inside: no Python, no shoal, no socket.
program run_rod
   use controller_module
   use rod_model
   implicit none
   real(c_double) :: heat(0:cells + 1), action(controller_num_action), error, constant
   type(controller_state) :: state
   integer :: step

   heat = 0
   error = 0
   call controller_reset(state)
   do step = 1, steps
      if (controller_act(state, sensors(heat), action) /= 0) error stop "the controller refuses what the sensors say"
      call advance(heat, action(1))
      error = error + abs(heat(cells) - wanted)
      if (mod(step, 10) == 0) print "(a,i3,a,f7.4,a,f7.4)", "step", step, "  power", action(1), "  far end", heat(cells)
   end do

   heat = 0
   constant = 0
   do step = 1, steps
      call advance(heat, wanted)
      constant = constant + abs(heat(cells) - wanted)
   end do
   print "(a,f8.4)", "sum of errors, controlled:        ", error
   print "(a,f8.4)", "sum of errors, at constant power: ", constant
end program run_rod
